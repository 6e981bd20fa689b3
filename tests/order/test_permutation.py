import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.randomness import derive_key, hash_positions, permute, sort_hashes

seeds = st.integers(0, 2**64 - 1)


def test_hashes_are_the_published_splitmix64_sequence():
    # The first outputs for this seed in the generator's reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert hash_positions(np.arange(4, dtype=np.uint64), 1234567).tolist() == expected


def test_keys_tell_apart_words_that_are_near_or_swapped():
    words = [(seed, epoch, way) for seed in range(20) for epoch in range(20) for way in range(4)]
    assert len({derive_key(*word) for word in words}) == len(words)


@given(count=st.integers(1, 3000), key=seeds, data=st.data())
def test_a_permutation_is_one_for_small_counts_too_and_each_position_stays_where_it_goes(count, key, data):
    image = permute(np.arange(count, dtype=np.uint64), count, key)
    assert sorted(image.tolist()) == sorted(sort_hashes(count, key).tolist()) == list(range(count))
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.uint64)
    given_positions = positions.copy()
    assert permute(positions, count, key).tolist() == image[positions.astype(np.int64)].tolist()
    assert (positions == given_positions).all()
