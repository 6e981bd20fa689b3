"""The queue between a producer and a consumer: bounded, closeable from both ends, carrying errors."""

import threading
from queue import Empty, Full

import pytest

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
