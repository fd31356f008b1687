"""Draws from a policy by inversion, eight at a time in explicit vectors (see simd.py)."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fade_sim.sim.compile import kernel
from fade_sim.sim.simd import _I32, _I64, _const, _each, _load, _loop, _need, _Row, _splat, _store

LANES = 8
_DOUBLE, _U, _X = ir.DoubleType(), ir.VectorType(ir.DoubleType(), LANES), ir.VectorType(_I64, LANES)
_PIVOTS = 16  # the first search step compares with the borders of so many blocks at once


@kernel
def draw_arms(prob, b, stream, start, cdf, arms):
    """arms[b, g] for g < G: the first arm whose cumulative sum of prob[b] exceeds u times the total, for the
    uniforms u at start, start + 1, ... of the stream (`primitives.uniform`).

    arms: (B, G rounded up to LANES) unsigned, the row is filled whole; cdf (1, K) is scratch. G draws cost the same
    hash and the same comparisons whatever the outcome: no branch depends on a draw.
    """
    cumulate(cdf, 0, prob, b)
    search(cdf, stream, start, arms, b)


@intrinsic
def cumulate(typing, cdf, j, prob, i):
    """cdf[j, k] = sum of prob[i, 0..k], never decreasing in k: a sum is added to whole blocks at a time."""
    _need(cdf, prob)

    def generate(context, b, signature, args):
        target = _Row(context, b, signature.args[0], args[0], args[1])
        source = _Row(context, b, signature.args[2], args[2], args[3])

        def body(t, k, before):
            x = _load(b, source.start, k, t)
            if isinstance(t, ir.VectorType):
                x = _prefix_sums(b, x)
            x = b.fadd(before, x)
            _store(b, x, target.start, k)
            return [_last(b, x)]

        _each(b, source.size, source.element, [0.0], body, [lambda b, x, y: x])
        return context.get_dummy_value()

    return types.void(cdf, types.int64, prob, types.int64), generate


def _prefix_sums(b, x):
    """Lane k holds the sum of lanes 0 .. k: the upper half of each block takes the last sum of the lower half."""
    n, half = x.type.count, 1
    while half < n:
        lanes = [n + lane // (2 * half) * 2 * half + half - 1 if lane % (2 * half) >= half else 0 for lane in range(n)]
        mask = ir.Constant(ir.VectorType(_I32, n), [_I32(lane) for lane in lanes])
        x = b.fadd(x, b.shuffle_vector(_const(x.type, 0.0), x, mask))
        half *= 2
    return x


def _last(b, x):
    """The last lane in all lanes."""
    if not isinstance(x.type, ir.VectorType):
        return x
    n = x.type.count
    return b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), _const(ir.VectorType(_I32, n), n - 1))


def _uniforms(b, stream, index):
    """splitmix64 of (stream, index + 1): the numbers of `primitives.uniform`, times 2^53."""
    x = b.add(_splat(b, stream, _X), b.mul(index, _const(_X, 0x9E3779B97F4A7C15)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = b.mul(b.xor(x, b.lshr(x, _const(_X, shift))), _const(_X, factor))
    x = b.xor(x, b.lshr(x, _const(_X, 31)))
    return b.uitofp(b.lshr(x, _const(_X, 11)), _U)


def _where(b, condition, value):
    return b.select(condition, _splat(b, value, _X), _const(_X, 0))


@intrinsic
def search(typing, cdf, stream, start, arms, i):
    """The search of `draw_arms` in cdf (1, K), increasing."""
    _need(cdf)

    def generate(context, b, signature, args):
        row = _Row(context, b, signature.args[0], args[0], _I64(0))
        out = _Row(context, b, signature.args[3], args[3], args[4])
        K, stream, start = row.shape[0], args[1], args[2]
        last = b.sub(K, _I64(1))

        def cumulative(place):
            value = _load(b, row.start, place, row.element)
            return value if row.element == _DOUBLE else b.fpext(value, _DOUBLE)

        unit = b.fmul(cumulative(last), ir.Constant(_DOUBLE, 2.0**-53))
        block = b.udiv(b.add(K, _I64(_PIVOTS - 1)), _I64(_PIVOTS))
        pivots = []
        for j in range(1, _PIVOTS):
            border = b.sub(b.mul(block, _I64(j)), _I64(1))
            pivots.append(cumulative(b.select(b.icmp_signed("<", border, last), border, last)))

        def narrow(u, n, arm):
            """One level of the search among n arms from `arm` on."""
            half = b.lshr(n, _I64(1))
            place = b.add(arm, _splat(b, b.sub(half, _I64(1)), _X))
            place = b.select(b.icmp_signed("<", place, _splat(b, last, _X)), place, _splat(b, last, _X))
            value = ir.Constant(_U, ir.Undefined)
            for lane in range(LANES):
                one = cumulative(b.extract_element(place, _I32(lane)))
                value = b.insert_element(value, one, _I32(lane))
            return b.add(arm, _where(b, b.fcmp_ordered("<=", value, u), half))

        def draw(vectors, g):
            us, arms = [], []
            for v in range(vectors):
                lanes = ir.Constant(_X, [v * LANES + lane + 1 for lane in range(LANES)])
                index = b.add(_splat(b, b.add(start, g), _X), lanes)
                us.append(b.fmul(_uniforms(b, stream, index), _splat(b, unit, _U)))
                arm = _const(_X, 0)
                for pivot in pivots:
                    arm = b.add(arm, _where(b, b.fcmp_ordered("<=", _splat(b, pivot, _U), us[-1]), block))
                arms.append(arm)

            def level(n, *arms):
                return [narrow(u, n, arm) for u, arm in zip(us, arms, strict=True)]

            for v, arm in enumerate(_while_above_one(b, [block, *arms], level)):
                place = b.gep(out.start, [b.add(g, _I64(v * LANES))])
                kind = ir.VectorType(out.element, LANES)
                arm = arm if out.element == _I64 else b.trunc(arm, kind)
                b.store(arm, b.bitcast(place, kind.as_pointer()), align=out.element.width // 8)
            return []

        done = _I64(0)
        for vectors in (4, 2, 1):  # several side by side hide the latency of a level
            n = LANES * vectors
            stop = b.and_(out.shape[0], _I64(-n))
            _loop(b, done, stop, n, [], lambda g, vectors=vectors: draw(vectors, g))
            done = stop
        return context.get_dummy_value()

    return types.void(cdf, types.uint64, types.int64, arms, types.int64), generate


def _while_above_one(b, values, body):
    """n, *rest = values; while n > 1: rest = body(n, *rest); n -= n // 2. Returns rest."""
    before = b.block
    test, inside, after = (b.append_basic_block(name) for name in ("test", "inside", "after"))
    b.branch(test)
    b.position_at_end(test)
    carried = []
    for value in values:
        carried.append(b.phi(value.type))
        carried[-1].add_incoming(value, before)
    n, *rest = carried
    b.cbranch(b.icmp_signed(">", n, _I64(1)), inside, after)
    b.position_at_end(inside)
    new = [b.sub(n, b.lshr(n, _I64(1))), *body(n, *rest)]
    for phi, value in zip(carried, new, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(test)
    b.position_at_end(after)
    return rest
