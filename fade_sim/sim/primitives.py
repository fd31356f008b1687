"""Compiled building blocks: random numbers, exp, small matrix products, the policy.

Loops are written so that vector lanes are independent and every sum has one order (four chains,
added at the end): the compiler may vectorise them without changing a bit.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fade_sim.sim.compile import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@intrinsic
def _float_from_bits(typingctx, x):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def _bits_from_float(typingctx, x):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


# --- random numbers ---------------------------------------------------------------------------------------


@kernel
def _mix(x):
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@kernel
def step_key(key, step):
    """Stream of one step (splitmix64)."""
    return _mix(key + np.uint64(step) * _GOLDEN)


@kernel
def uniform(stream, index):
    """The index-th uniform in [0, 1) of a stream."""
    return float(_mix(stream + np.uint64(index + 1) * _GOLDEN) >> _S11) * (1.0 / 9007199254740992.0)


# --- arithmetic -------------------------------------------------------------------------------------------

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
_ONE_BITS = np.int64(0x3FF0000000000000)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12 = (1 / math.factorial(i) for i in range(2, 13))


@kernel
def exp_negative(x):
    """e^x for x <= 0, without a branch so that it vectorises: relative error below 5e-16; 0 below -708."""
    x = max(x, -709.0)
    shifted = x * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW  # |r| <= ln 2 / 2; Taylor to r^12 (Estrin)
    r2 = r * r
    r4 = r2 * r2
    low = ((1.0 + r) + (_C2 + _C3 * r) * r2) + ((_C4 + _C5 * r) + (_C6 + _C7 * r) * r2) * r4
    high = ((_C8 + _C9 * r) + (_C10 + _C11 * r) * r2) + _C12 * r4
    power_of_two = _float_from_bits((_bits_from_float(shifted) << np.int64(52)) + _ONE_BITS)
    return (low + high * (r4 * r4)) * power_of_two * (x > -708.0)


@kernel
def copy_matrix(source, target):
    """Numba's own array assignment carries an error message that costs seconds to compile."""
    for i in range(source.shape[0]):
        for k in range(source.shape[1]):
            target[i, k] = source[i, k]


@kernel
def total(x):
    """Sum of x (n,) in four chains."""
    n = x.shape[0]
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for k in range(0, n - 3, 4):
        s0 += x[k]
        s1 += x[k + 1]
        s2 += x[k + 2]
        s3 += x[k + 3]
    for k in range(n - n % 4, n):
        s0 += x[k]
    return (s0 + s1) + (s2 + s3)


@kernel
def product_total(x, y):
    """Sum of x y (n,) in four chains."""
    n = x.shape[0]
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for k in range(0, n - 3, 4):
        s0 += x[k] * y[k]
        s1 += x[k + 1] * y[k + 1]
        s2 += x[k + 2] * y[k + 2]
        s3 += x[k + 3] * y[k + 3]
    for k in range(n - n % 4, n):
        s0 += x[k] * y[k]
    return (s0 + s1) + (s2 + s3)


@kernel
def largest(x):
    """Maximum of x (n,), in four chains."""
    n = x.shape[0]
    m0, m1, m2, m3 = x[0], x[0], x[0], x[0]
    for k in range(0, n - 3, 4):
        m0 = max(m0, x[k])
        m1 = max(m1, x[k + 1])
        m2 = max(m2, x[k + 2])
        m3 = max(m3, x[k + 3])
    for k in range(n - n % 4, n):
        m0 = max(m0, x[k])
    return max(max(m0, m1), max(m2, m3))


@kernel
def add_product(C, A, B):
    """C (m, n) += A (m, r) B (r, n): lanes over n, four rows of C by four of B at a time."""
    m, n = C.shape
    r = A.shape[1]
    m4, r4 = m - m % 4, r - r % 4
    for i in range(0, m4, 4):
        for j in range(0, r4, 4):
            a00, a01, a02, a03 = A[i, j], A[i, j + 1], A[i, j + 2], A[i, j + 3]
            a10, a11, a12, a13 = A[i + 1, j], A[i + 1, j + 1], A[i + 1, j + 2], A[i + 1, j + 3]
            a20, a21, a22, a23 = A[i + 2, j], A[i + 2, j + 1], A[i + 2, j + 2], A[i + 2, j + 3]
            a30, a31, a32, a33 = A[i + 3, j], A[i + 3, j + 1], A[i + 3, j + 2], A[i + 3, j + 3]
            for k in range(n):
                b0, b1, b2, b3 = B[j, k], B[j + 1, k], B[j + 2, k], B[j + 3, k]
                C[i, k] += (a00 * b0 + a01 * b1) + (a02 * b2 + a03 * b3)
                C[i + 1, k] += (a10 * b0 + a11 * b1) + (a12 * b2 + a13 * b3)
                C[i + 2, k] += (a20 * b0 + a21 * b1) + (a22 * b2 + a23 * b3)
                C[i + 3, k] += (a30 * b0 + a31 * b1) + (a32 * b2 + a33 * b3)
    for i in range(m):
        for j in range(r4 if i < m4 else 0, r):
            a = A[i, j]
            for k in range(n):
                C[i, k] += a * B[j, k]


# --- the policy -------------------------------------------------------------------------------------------


@kernel
def logits(world, x, head, use_head, theta, z, work):
    """z (K,) = b + theta + v^T W h; linear: b + theta + h W. Arms are the lanes; work is (V, K)."""
    K = z.shape[0]
    bias = world.bias[x]
    for a in range(K):
        z[a] = bias[a] + theta[a]
    if not use_head:
        return
    if world.linear:
        h = world.hidden[x, 0]
        for j in range(head.shape[0]):
            s = h[j]
            for a in range(K):
                z[a] += s * head[j, a]
        return
    work[:] = 0.0
    add_product(work, head, world.hidden_t[x])  # row i: (W h_a)_i for all arms a
    token = world.token_t[x]
    for i in range(head.shape[0]):
        for a in range(K):
            z[a] += token[i, a] * work[i, a]


@kernel
def policy(world, x, head, use_head, theta, prob, scratch, work):
    """Fill prob (K,) with the policy on prompt x; returns its entropy in nats."""
    K = prob.shape[0]
    logits(world, x, head, use_head, theta, scratch, work)
    top = largest(scratch)
    for a in range(K):
        shifted = max(scratch[a] - top, -1e4)  # finite: 0 * -inf below would be NaN
        scratch[a] = shifted
        prob[a] = exp_negative(shifted)
    Z = total(prob)
    mean = product_total(prob, scratch) / Z
    scale = 1.0 / Z
    for a in range(K):
        prob[a] *= scale
    return math.log(Z) - mean


@kernel
def add_gradient(world, x, coef, grad, work):
    """grad += sum_a coef_a d z_a / d W on prompt x; work is (V, K)."""
    K = coef.shape[0]
    if world.linear:  # W is (d, K)
        for j in range(grad.shape[0]):
            h = world.hidden[x, 0, j]
            for a in range(K):
                grad[j, a] += h * coef[a]
        return
    token = world.token_t[x]
    for i in range(grad.shape[0]):
        for a in range(K):
            work[i, a] = coef[a] * token[i, a]
    add_product(grad, work, world.hidden[x])


@kernel
def draw_arms(cdf, stream, start, draws, arms):
    """arms (G,): for each uniform of the stream from `start`, the first arm whose cdf (K,) exceeds u cdf_K.

    Branch-free search, level by level, so that the draws run side by side. draws (G,) is scratch.
    """
    K, G = cdf.shape[0], arms.shape[0]
    for g in range(G):
        draws[g] = uniform(stream, start + g) * cdf[K - 1]
        arms[g] = 0
    n = K
    while n > 1:
        half = n // 2
        for g in range(G):
            arms[g] += half * (cdf[arms[g] + half - 1] <= draws[g])
        n -= half
