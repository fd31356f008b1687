"""The explicit vectors against NumPy, in both precisions, at widths below, at and past a vector."""

import numpy as np
import pytest
from numba import njit

from fade_sim.sim import draws, primitives, simd

WIDTHS = (1, 2, 7, 8, 16, 17, 37, 256)
DTYPES = (np.float64, np.float32)


@njit
def softmax_row(z, i, prob, j):
    return simd.softmax_row(z, i, prob, j, 0)


@njit
def add_scaled(y, j, a, x, i):
    simd.add_scaled(y, j, a, x, i, 0)


@njit
def set_scaled(y, j, a, x, i):
    simd.set_scaled(y, j, a, x, i)


@njit
def cumulate(cdf, j, prob, i):
    draws.cumulate(cdf, j, prob, i)


@njit
def add_bilinear(z, i, W, token, hidden, x):
    simd.add_bilinear(z, i, W, token, hidden, x)


@njit
def add_outer(grad, coef, i, token, hidden, x, work):
    simd.add_outer(grad, coef, i, token, hidden, x, work)


@njit
def search(cdf, stream, start, arms):
    draws.search(cdf, stream, start, arms, 0)


@njit
def draw_arms(prob, b, stream, start, cdf, arms):
    draws.draw_arms(prob, b, stream, start, cdf, arms)


def rows(dtype, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", WIDTHS)
def test_softmax_row(dtype, K):
    z, prob, unit = 5 * rows(dtype, 3, K), np.full((2, K), 9, dtype), np.finfo(dtype).eps
    Z, moment, top = softmax_row(z, 2, prob, 1)
    x = z[2] - z[2].max()  # rounded as the kernel rounds it
    e = np.exp(x.astype(np.longdouble))
    assert top == z[2].max()
    assert np.abs(prob[1] / e - 1).max() < 2.5 * unit
    assert abs(Z / e.sum() - 1) < 4 * unit and abs(moment - (e * x).sum()) < 4 * unit
    assert (prob[0] == 9).all()
    assert softmax_row(z, 2, z, 2) == (Z, moment, top) and (z[2] == prob[1]).all()  # in place


@pytest.mark.parametrize(("dtype", "lowest", "floor"), [(np.float64, -708.0, 4e-308), (np.float32, -87.0, 2e-38)])
def test_exp_over_its_whole_range(dtype, lowest, floor):
    z = np.concatenate([np.linspace(lowest, 0, 100_003), -np.logspace(-30, 1, 2001)]).astype(dtype)[None]
    prob = np.empty_like(z)
    softmax_row(z, 0, prob, 0)
    assert np.abs(prob[0] / np.exp(z[0].astype(np.longdouble)) - 1).max() < 2.5 * np.finfo(dtype).eps
    far = np.array([[0, -1e6, -np.inf]], dtype)
    Z, moment, _ = softmax_row(far, 0, far, 0)
    assert Z == 1 and abs(moment) < 1e-34 and (far[0, 1:] >= 0).all() and (far[0, 1:] < floor).all()


@pytest.mark.parametrize("z", [[np.nan, 1.0], [1.0, np.nan] * 9, [np.inf, 1.0], [-np.inf, -np.inf]])
def test_softmax_of_what_is_no_policy_is_nan(z):
    assert np.isnan(softmax_row(np.array([z]), 0, np.empty((1, len(z))), 0)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", WIDTHS)
def test_scaled_rows_and_prefix_sums(dtype, K):
    x, y, unit = rows(dtype, 2, K), rows(dtype, 2, K, seed=1), np.finfo(dtype).eps
    before = y.copy()
    add_scaled(y, 1, 0.3, x, 0)
    np.testing.assert_allclose(y[1], before[1] + np.float64(dtype(0.3)) * x[0], rtol=0, atol=4 * unit)
    assert (y[0] == before[0]).all()
    set_scaled(y, 0, -2.0, x, 1)
    assert (y[0] == -2 * x[1]).all()
    cdf = np.empty((1, K), dtype)
    cumulate(cdf, 0, np.abs(x), 1)
    np.testing.assert_allclose(cdf[0], np.cumsum(np.abs(x[1]), dtype=np.longdouble), rtol=4 * unit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("V", "d", "K"), [(16, 16, 32), (5, 3, 7), (1, 1, 1), (9, 16, 17), (2, 33, 2), (4, 8, 8)])
def test_products(dtype, V, d, K):
    W, token, hidden = rows(dtype, V, d), rows(dtype, 2, V, K, seed=1), rows(dtype, 2, d, K, seed=2)
    z, atol = rows(dtype, 2, K, seed=3), 100 * np.finfo(dtype).eps
    before = z.copy()
    add_bilinear(z, 1, W, token, hidden, 1)
    np.testing.assert_allclose(z[1], before[1] + ((W @ hidden[1]) * token[1]).sum(axis=0), rtol=0, atol=atol)
    assert (z[0] == before[0]).all()
    grad, work, arms_last = W.copy(), np.empty((V, K), dtype), np.ascontiguousarray(hidden.swapaxes(1, 2))
    add_outer(grad, before, 1, token, arms_last, 1, work)
    np.testing.assert_allclose(grad, W + (token[1] * before[1]) @ hidden[1].T, rtol=0, atol=atol)


@pytest.mark.parametrize("K", [1, 2, 3, 7, 8, 9, 32, 33, 100, 256])
@pytest.mark.parametrize(("G", "arm"), [(1, "u2"), (8, "u4"), (11, "u8"), (56, "u2"), (500, "u2")])
def test_drawn_arm_is_the_first_whose_cdf_exceeds_the_uniform(K, G, arm):
    cdf = np.cumsum(np.random.default_rng(K).random(K))
    cdf[K // 2 :] = np.maximum(cdf[K // 2 :], cdf[K // 2])
    arms = np.full((1, -(-G // draws.LANES) * draws.LANES), 10**4, arm)
    search(cdf[None], np.uint64(K), 3, arms)
    u = np.array([primitives.uniform(np.uint64(K), 3 + g) for g in range(arms.size)]) * cdf[-1]
    np.testing.assert_array_equal(arms[0], np.searchsorted(cdf, u, side="right"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_arm_without_probability_is_never_drawn(dtype):
    prob = np.array([[0, 0.5, 0, 0, 0, 0.25, 0, 0, 0, 0.25, 0, 0]], dtype)
    arms, seen = np.zeros((1, 512), np.uint16), set()
    for stream in range(50):
        draw_arms(prob, 0, np.uint64(stream), 0, np.empty((1, 12), dtype), arms)
        seen |= set(arms[0].tolist())
    assert seen == {1, 5, 9}
