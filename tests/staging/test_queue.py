"""The queue between producers and a consumer: bounded, both ends can close it, and it carries errors."""

import threading
from collections import deque
from queue import Empty, Full

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.errors import QueueClosed
from gpuloader.staging.queue import BatchQueue, pump
from tests.fakes import wait_until


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_items_come_out_in_order_and_then_the_end_again_and_again():
    queue = BatchQueue(3)
    for item in (1, None, 3):
        queue.put(item)
    queue.finish()
    assert list(queue) == [1, None, 3]
    for _ in range(2):
        with pytest.raises(QueueClosed):
            queue.get()


def test_put_waits_while_full():
    queue = BatchQueue(2)
    done = []
    producer = start(lambda: [(queue.put(n), done.append(n)) for n in range(4)])
    wait_until(lambda: len(done) == 2)
    assert queue.statistics().queued == 2
    assert queue.get() == 0
    wait_until(lambda: len(done) == 3)
    assert [queue.get(), queue.get(), queue.get()] == [1, 2, 3]
    producer.join(10)


def test_the_impatient_forms_say_full_and_empty():
    queue = BatchQueue(1)
    with pytest.raises(Empty):
        queue.get_nowait()
    queue.put_nowait("a")
    with pytest.raises(Full):
        queue.put_nowait("b")
    assert queue.get_nowait() == "a"
    queue.put_nowait("c")


def test_an_error_comes_behind_the_items_before_it():
    queue = BatchQueue(4)
    queue.put(1)
    queue.finish(OSError("gone"))
    assert queue.get() == 1
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            queue.get()


def test_the_end_needs_every_producer_an_error_only_one():
    queue = BatchQueue(4, producers=2)
    queue.finish()
    queue.put(1)
    assert queue.get() == 1
    queue.finish()
    assert list(queue) == []
    queue = BatchQueue(4, producers=2)
    queue.finish(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        queue.get()


def test_every_item_of_many_producers_comes_once_and_in_its_producers_order():
    queue = BatchQueue(2, producers=3)

    def produce(name):
        for number in range(100):
            queue.put((name, number))
        queue.finish()

    producers = [start(lambda name=name: produce(name)) for name in range(3)]
    seen = list(queue)
    for producer in producers:
        producer.join(10)
    assert len(seen) == 300
    for name in range(3):
        assert [number for who, number in seen if who == name] == list(range(100))


def test_consumers_share_the_items_and_all_meet_the_end():
    queue, shares = BatchQueue(2), [[], []]
    consumers = [start(lambda share=share: share.extend(queue)) for share in shares]
    for number in range(50):
        queue.put(number)
    queue.finish()
    for consumer in consumers:
        consumer.join(10)
        assert not consumer.is_alive()
    assert sorted(shares[0] + shares[1]) == list(range(50))


def test_the_first_error_of_several_is_the_one():
    queue = BatchQueue(2, producers=3)
    queue.finish(OSError("first"))
    queue.finish(OSError("second"))
    queue.finish()
    for _ in range(2):
        with pytest.raises(OSError, match="first"):
            queue.get()


def test_closing_after_an_error_says_closed():
    queue = BatchQueue(2)
    queue.put("queued")
    queue.finish(OSError("gone"))
    assert queue.close() == ["queued"]
    for take in (queue.get, queue.get_nowait):
        with pytest.raises(QueueClosed):
            take()
    with pytest.raises(QueueClosed):
        queue.put_nowait("late")


def test_a_consumer_that_waits_wakes_when_another_closes():
    queue, ended = BatchQueue(1), []

    def consume():
        with pytest.raises(QueueClosed):
            queue.get()
        ended.append(1)

    consumers = [start(consume) for _ in range(3)]
    assert queue.close() == []
    for consumer in consumers:
        consumer.join(10)
    assert len(ended) == 3


@given(capacity=st.integers(1, 4), program=st.lists(st.sampled_from("pg"), max_size=40))
def test_the_impatient_forms_agree_with_a_bounded_list(capacity, program):
    queue, model = BatchQueue(capacity), deque()
    for number, act in enumerate(program):
        if act == "p":
            if len(model) == capacity:
                with pytest.raises(Full):
                    queue.put_nowait(number)
            else:
                queue.put_nowait(number)
                model.append(number)
        elif model:
            assert queue.get_nowait() == model.popleft()
        else:
            with pytest.raises(Empty):
                queue.get_nowait()
        assert queue.is_empty() == (not model)
        assert queue.statistics().queued == len(model)


def test_closing_wakes_all_waiting_producers_and_returns_what_was_queued():
    queue = BatchQueue(1)
    queue.put("queued")
    refused = []

    def produce():
        try:
            queue.put("late")
        except QueueClosed:
            refused.append(1)

    producers = [start(produce) for _ in range(3)]
    assert queue.close() == ["queued"]
    for producer in producers:
        producer.join(10)
    assert len(refused) == 3
    with pytest.raises(QueueClosed):
        queue.put("later still")
    with pytest.raises(QueueClosed):
        queue.get()
    assert queue.statistics().closed
    assert queue.close() == []


def test_a_waiting_consumer_wakes_at_the_end():
    queue = BatchQueue(1)
    seen = []
    consumer = start(lambda: seen.extend(queue))
    queue.put(1)
    queue.finish()
    consumer.join(10)
    assert seen == [1]


def test_a_queue_needs_room():
    with pytest.raises(ValueError, match="capacity"):
        BatchQueue(0)


class TestPump:
    def test_it_closes_the_iterator_and_disposes_of_what_nobody_gets(self):
        closed = threading.Event()

        def items():
            try:
                yield from range(100)
            finally:
                closed.set()

        queue, disposed = BatchQueue(2), []
        thread = start(lambda: pump(items, queue, disposed.append))
        assert queue.get() == 0
        wait_until(lambda: queue.statistics().queued == 2)
        left = queue.close()
        thread.join(10)
        assert closed.is_set()
        assert sorted(left + disposed) == [1, 2, 3]

    def test_an_error_while_opening_or_closing_arrives(self):
        def refuse():
            raise OSError("cannot open")

        def bad_end():
            try:
                yield 1
                yield 2
            finally:
                raise OSError("cannot close")

        queue = BatchQueue(2)
        pump(refuse, queue)
        with pytest.raises(OSError, match="cannot open"):
            queue.get()
        queue = BatchQueue(5)
        pump(bad_end, queue)
        assert [queue.get(), queue.get()] == [1, 2]
        with pytest.raises(OSError, match="cannot close"):
            queue.get()

    def test_whoever_reads_to_the_end_gets_all_and_nothing_is_disposed_of(self):
        queue, disposed = BatchQueue(1), []
        thread = start(lambda: pump(lambda: iter(range(20)), queue, disposed.append))
        assert list(queue) == list(range(20))
        thread.join(10)
        assert disposed == []

    def test_an_error_comes_behind_the_items_the_reader_gave_before_it(self):
        def items():
            yield 1
            raise KeyError("bad")

        queue = BatchQueue(2)
        pump(items, queue)
        assert queue.get() == 1
        with pytest.raises(KeyError, match="bad"):
            queue.get()

    def test_a_reader_that_fails_while_it_is_closed_disposes_all_the_same(self):
        def items():
            try:
                yield from range(10)
            finally:
                raise OSError("cannot close")

        queue, disposed = BatchQueue(1), []
        thread = start(lambda: pump(items, queue, disposed.append))
        wait_until(lambda: queue.statistics().queued == 1)
        left = queue.close()
        thread.join(10)
        assert not thread.is_alive()
        assert sorted(left + disposed) == [0, 1]
