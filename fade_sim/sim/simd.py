"""Row operations in explicit vectors of 64 bytes: softmax, scaled sums, small matrix products.

The compiler's own vectoriser needs `reassoc` to vectorise a sum, and then gives a freshly compiled
kernel and a cached one different bits. Here lanes and the order of every sum are written down, the
only freedom is a fused multiply-add; and what is written in vectors compiles several times faster.
Each operation handles the entries past the last full vector with the same code on single numbers.
Rows are addressed as (array, index): the row array[index] of any C-contiguous array, float32 or
float64. Nothing is checked: callers own the shapes.
"""

import math

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

_BYTES = 64
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FUSE = ("contract",)
_ROWS = 4  # of a product at a time: four independent sums hide the latency of a multiply-add

# e^x = 2^n e^r, |r| <= ln 2 / 2; ln 2 in two parts so that n ln 2 is exact; Taylor series of e^r.
_EXP = {  # lowest x; ln 2 high, low; degree; 1.5 * 2^mantissa rounds to an integer; mantissa; bits of 1.0
    "double": (-708.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 12, 1.5 * 2**52, 52, 0x3FF << 52),
    "float": (-87.0, 0.693359375, -2.12194440e-4, 7, 1.5 * 2**23, 23, 0x7F << 23),
}


# --- emitting code: b is the LLVM builder, t a float type or a vector of one ------------------------------


def _const(t, value):
    return ir.Constant(t, [value] * t.count) if isinstance(t, ir.VectorType) else ir.Constant(t, value)


def _element(t):
    return t.element if isinstance(t, ir.VectorType) else t


def _fma(b, x, y, z):
    return b.fadd(b.fmul(x, y, flags=_FUSE), z, flags=_FUSE)


def _max(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _exp(b, x):
    """e^x for x <= 0; below the lowest x its value there (3e-308, 2e-38). NaN stays NaN."""
    t = x.type
    low, ln2_high, ln2_low, degree, magic, mantissa, one = _EXP[str(_element(t))]
    n_type = _I64 if mantissa == 52 else _I32
    n_type = ir.VectorType(n_type, t.count) if isinstance(t, ir.VectorType) else n_type
    c = [_const(t, 1 / math.factorial(i)) for i in range(degree + 1)]
    x = b.select(b.fcmp_unordered(">", x, _const(t, low)), x, _const(t, low))
    shifted = _fma(b, x, _const(t, 1 / math.log(2)), _const(t, magic))
    n = b.fsub(shifted, _const(t, magic))
    r = _fma(b, n, _const(t, -ln2_low), _fma(b, n, _const(t, -ln2_high), x))
    power = b.add(b.shl(b.bitcast(shifted, n_type), _const(n_type, mantissa)), _const(n_type, one))
    terms = c  # Estrin: pairs, then pairs of pairs
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [_fma(b, high, r, low) for low, high in zip(terms[0:-1:2], terms[1::2], strict=True)] + odd
        r = b.fmul(r, r)
    return b.fmul(terms[0], b.bitcast(power, t))


def _splat(b, x, t):
    """x in every lane of t."""
    if not isinstance(t, ir.VectorType):
        return x
    undefined = ir.Constant(t, ir.Undefined)
    one = b.insert_element(undefined, x, _I32(0))
    return b.shuffle_vector(one, undefined, _const(ir.VectorType(_I32, t.count), 0))


def _reduce(b, v, combine):
    """The lanes of v combined in halves."""
    n = v.type.count
    while n > 1:
        n //= 2
        low, high = ([_I32(i) for i in range(k, k + n)] for k in (0, n))
        undefined = ir.Constant(v.type, ir.Undefined)
        v = combine(b, *(b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(_I32, n), half))
                         for half in (low, high)))
    return b.extract_element(v, _I32(0))


def _loop(b, start, stop, step, values, body):
    """for i in range(start, stop, step): values = body(i, *values); returns the last values."""
    before = b.block
    test, inside, after = (b.append_basic_block(name) for name in ("test", "inside", "after"))
    b.branch(test)
    b.position_at_end(test)
    i = b.phi(_I64)
    i.add_incoming(start, before)
    carried = []
    for value in values:
        carried.append(b.phi(value.type))
        carried[-1].add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", i, stop), inside, after)
    b.position_at_end(inside)
    new = body(i, *carried)
    i.add_incoming(b.add(i, _I64(step)), b.block)
    for phi, value in zip(carried, new, strict=True):
        phi.add_incoming(value, b.block)
    back = b.branch(test)
    back.set_metadata("llvm.loop", _keep_rolled(b.module))
    b.position_at_end(after)
    return carried


class _LoopNode(ir.values.MDValue):
    """Metadata of one loop: LLVM wants a node that names itself, which llvmlite does not offer."""

    def descr(self, buf):
        operands = ", ".join(op.get_reference() for op in self.operands)
        buf += (f"distinct !{{ {self.get_reference()}, {operands} }}", "\n")

    def __hash__(self):
        return id(self)


def _keep_rolled(module):
    """Loops of a few vectors gain nothing from being unrolled eight times, and cost seconds of compilation."""
    wish = module.add_metadata(["llvm.loop.unroll.disable"])
    return _LoopNode(module, [wish], name=str(len(module.metadata)))


def _each(b, n, element, values, body, combine=()):
    """Over 0 .. n-1 in vectors, then one by one. body(t, i, *values): t is the type at this place.
    values: starting value of each sum (or maximum), combined over lanes in between."""
    t = ir.VectorType(element, _BYTES // (8 if isinstance(element, ir.DoubleType) else 4))
    whole = b.and_(n, _I64(-t.count))
    sums = _loop(b, _I64(0), whole, t.count, [_const(t, v) for v in values], lambda i, *v: body(t, i, *v))
    sums = [_reduce(b, v, c) for v, c in zip(sums, combine, strict=True)]
    return _loop(b, whole, n, 1, sums, lambda i, *v: body(element, i, *v))


def _load(b, row, i, t):
    return b.load(b.bitcast(b.gep(row, [i]), t.as_pointer()), align=_align(t))


def _store(b, value, row, i):
    b.store(value, b.bitcast(b.gep(row, [i]), value.type.as_pointer()), align=_align(value.type))


def _align(t):
    return 8 if isinstance(_element(t), ir.DoubleType) else 4


class _Row:
    """array[index]: pointer to its first number, its shape and size (LLVM values), its element type."""

    def __init__(self, context, b, kind, array, index=None):
        view = context.make_array(kind)(context, b, array)
        self.shape = [b.extract_value(view.shape, k) for k in range(kind.ndim)]
        if index is not None:
            del self.shape[0]
        self.size = _I64(1)
        for n in self.shape:
            self.size = b.mul(self.size, n)
        self.start = view.data if index is None else b.gep(view.data, [b.mul(index, self.size)])
        self.element = view.data.type.pointee


def _prefetch(b, start, k):
    """Ask for the line that start[k] lies in."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    function = b.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    b.call(function, [b.bitcast(b.gep(start, [k]), byte), _I32(0), _I32(3), _I32(1)])


def _sum(b, x, y):
    return b.fadd(x, y)


def _need(*arrays):
    """C-contiguous float arrays of one dtype, or a typing error at compile time."""
    for kind in arrays:
        if not isinstance(kind, types.Array) or kind.layout != "C" or kind.dtype != arrays[0].dtype:
            raise TypingError(f"expected C-contiguous arrays of one float type, got {arrays}")
    return arrays[0].dtype


# --- the operations ---------------------------------------------------------------------------------------


@intrinsic
def softmax_row(typing, z, i, prob, j, ahead):
    """prob[j] = e^(z[i] - max z[i]), not normalised; returns (its sum, sum of (z - max) e^(z - max), max).

    May work in place; asks for row z[ahead] on the way. Relative error of an exp below 5e-16 (float64), 2e-7 (float32).
    """
    dtype = _need(z, prob)

    def generate(context, b, signature, args):
        source = _Row(context, b, signature.args[0], args[0], args[1])
        target = _Row(context, b, signature.args[2], args[2], args[3])
        later = _Row(context, b, signature.args[0], args[0], args[4])
        (top,) = _each(b, source.size, source.element, [-math.inf],
                       lambda t, k, m: [_max(b, m, _load(b, source.start, k, t))], [_max])

        def body(t, k, total, moment):
            _prefetch(b, later.start, k)
            x = b.fsub(_load(b, source.start, k, t), _splat(b, top, t))
            low = _const(t, _EXP[str(source.element)][0])
            x = b.select(b.fcmp_unordered(">", x, low), x, low)  # finite: 0 times -inf would be NaN
            e = _exp(b, x)
            _store(b, e, target.start, k)
            return [b.fadd(total, e), _fma(b, e, x, moment)]

        total, moment = _each(b, source.size, source.element, [0.0, 0.0], body, [_sum, _sum])
        return context.make_tuple(b, signature.return_type, [total, moment, top])

    return types.UniTuple(dtype, 3)(z, types.int64, prob, types.int64, types.int64), generate


@intrinsic
def add_scaled(typing, y, j, a, x, i, ahead):
    """y[j] += a x[i]; asks for row y[ahead] on the way, a line at a time: a row of many lines asked for at
    once fills the queue of misses and is waited for."""
    dtype = _need(y, x)

    def generate(context, b, signature, args):
        target = _Row(context, b, signature.args[0], args[0], args[1])
        source = _Row(context, b, signature.args[3], args[3], args[4])
        later = _Row(context, b, signature.args[0], args[0], args[5])

        def body(t, k):
            _prefetch(b, later.start, k)
            x = _load(b, source.start, k, t)
            _store(b, _fma(b, _splat(b, args[2], t), x, _load(b, target.start, k, t)), target.start, k)
            return []

        _each(b, source.size, source.element, [], body)
        return context.get_dummy_value()

    return types.void(y, types.int64, dtype, x, types.int64, types.int64), generate


@intrinsic
def set_scaled(typing, y, j, a, x, i):
    """y[j] = a x[i]."""
    dtype = _need(y, x)

    def generate(context, b, signature, args):
        target = _Row(context, b, signature.args[0], args[0], args[1])
        source = _Row(context, b, signature.args[3], args[3], args[4])

        def body(t, k):
            _store(b, b.fmul(_splat(b, args[2], t), _load(b, source.start, k, t)), target.start, k)
            return []

        _each(b, source.size, source.element, [], body)
        return context.get_dummy_value()

    return types.void(y, types.int64, dtype, x, types.int64), generate


def _by_rows(b, m, body):
    """body(rows, first row): _ROWS rows at a time, then one at a time."""
    whole = b.and_(m, _I64(-_ROWS))
    _loop(b, _I64(0), whole, _ROWS, [], lambda i: body(_ROWS, i))
    _loop(b, whole, m, 1, [], lambda i: body(1, i))


def _products(b, rows, i, A, r, B, n, k, t):
    """(A B)[i .. i+rows-1, k] of type t, sums in the order of r; A(row, j) gives a scalar."""

    def step(j, *sums):
        x = _load(b, B, b.add(b.mul(j, n), k), t)
        return [_fma(b, _splat(b, A(b.add(i, _I64(row)), j), t), x, sums[row]) for row in range(rows)]

    return _loop(b, _I64(0), r, 1, [_const(t, 0.0)] * rows, step)


@intrinsic
def add_bilinear(typing, z, i, W, token, hidden, x):
    """z[i, a] += v_a^T W h_a for all arms a of prompt x: W (V, d), token (P, V, K), hidden (P, d, K)."""
    _need(z, W, token, hidden)

    def generate(context, b, signature, args):
        at = [_Row(context, b, kind, array, index) for kind, array, index in zip(
            (signature.args[k] for k in (0, 2, 3, 4)), (args[k] for k in (0, 2, 3, 4)),
            (args[1], None, args[5], args[5]), strict=True)]
        z, W, v, h = (row.start for row in at)
        (K,), (V, d) = at[0].shape, at[1].shape

        def weight(row, j):
            return _load(b, W, b.add(b.mul(row, d), j), at[1].element)

        def block(rows, first):
            def column(t, k):
                total = _load(b, z, k, t)
                for row, product in enumerate(_products(b, rows, first, weight, d, h, K, k, t)):
                    token = _load(b, v, b.add(b.mul(b.add(first, _I64(row)), K), k), t)
                    total = _fma(b, token, product, total)
                _store(b, total, z, k)
                return []

            _each(b, K, at[0].element, [], column)
            return []

        _by_rows(b, V, block)
        return context.get_dummy_value()

    return types.void(z, types.int64, W, token, hidden, types.int64), generate


@intrinsic
def add_outer(typing, grad, coef, i, token, hidden, x, work):
    """grad (V, d) += sum_a coef[i, a] v_a h_a^T on prompt x: token (P, V, K), hidden (P, K, d), work (V, K)."""
    _need(grad, coef, token, hidden, work)

    def generate(context, b, signature, args):
        at = [_Row(context, b, kind, array, index) for kind, array, index in zip(
            (signature.args[k] for k in (0, 1, 3, 4, 6)), (args[k] for k in (0, 1, 3, 4, 6)),
            (None, args[2], args[5], args[5], None), strict=True)]
        grad, coef, v, h, work = (row.start for row in at)
        (V, d), (K,), element = at[0].shape, at[1].shape, at[0].element

        def weigh(row):
            def body(t, a):
                place = b.add(b.mul(row, K), a)
                _store(b, b.fmul(_load(b, coef, a, t), _load(b, v, place, t)), work, place)
                return []

            _each(b, K, element, [], body)
            return []

        _loop(b, _I64(0), V, 1, [], weigh)

        def weighted(row, a):
            return _load(b, work, b.add(b.mul(row, K), a), element)

        def block(rows, first):
            def column(t, k):
                for row, product in enumerate(_products(b, rows, first, weighted, K, h, d, k, t)):
                    place = b.add(b.mul(b.add(first, _I64(row)), d), k)
                    _store(b, b.fadd(_load(b, grad, place, t), product), grad, place)
                return []

            _each(b, d, element, [], column)
            return []

        _by_rows(b, V, block)
        return context.get_dummy_value()

    return types.void(grad, coef, types.int64, token, hidden, types.int64, work), generate


@intrinsic
def prefetch(typing, x, i):
    """Ask for row x[i], of any type, ahead of its use: rows of a large table are met in random order."""
    if not isinstance(x, types.Array) or x.layout != "C":
        raise TypingError(f"expected a C-contiguous array, got {x}")

    def generate(context, b, signature, args):
        row = _Row(context, b, signature.args[0], args[0], args[1])
        size = context.get_abi_sizeof(row.element)

        def line(k):
            _prefetch(b, row.start, k)
            return []

        _loop(b, _I64(0), row.size, _BYTES // size, [], line)
        return context.get_dummy_value()

    return types.void(x, types.int64), generate
