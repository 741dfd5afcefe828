"""Does what `_once.Once.life` asks for: on the running loop, or on this thread."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any

from tidegate import _codec
from tidegate._execution import Execution, current
from tidegate._once import Ask, Body, Committed, LeaseLostError, Once, Pause, StaleError, Step, TimedOutError
from tidegate._tool_errors import NoEffectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate import _core


def run(once: Once) -> Any:
    """Live a call on this thread."""
    life = once.life()
    step = next(life)
    while True:
        try:
            result = _do(once, step)
        except BaseException as error:  # noqa: BLE001 the life decides
            ended, step = _advance(life.throw, error)
        else:
            ended, step = _advance(life.send, result)
        if ended is not None:
            return ended[0]


async def run_async(once: Once) -> Any:
    """Live a call on the running loop."""
    life = once.life()
    step = next(life)
    while True:
        try:
            result = await _do_async(once, step)
        except BaseException as error:  # noqa: BLE001 the life decides
            ended, step = _advance(life.throw, error)
        else:
            ended, step = _advance(life.send, result)
        if ended is not None:
            return ended[0]


def _advance(move: Callable[[Any], Step], value: Any) -> tuple[tuple[Any] | None, Any]:
    try:
        return None, move(value)
    except StopIteration as end:
        return (end.value,), None


def _do(once: Once, step: Step) -> Any:
    if isinstance(step, Ask):
        answer = once.store.answer(once.key, step.operation)
        return once.store.call(once.key, step.operation, step.patience) if answer is None else answer
    if isinstance(step, Body):
        return _body(once, step.execution)
    if isinstance(step, Pause):
        landed = threading.Event()
        if step.flight is not None:
            step.flight.on_landing(landed.set)
        landed.wait(step.seconds)
        return None
    assert once.policy.reconcile is not None  # noqa: S101 for the type checker
    verdict = once.policy.reconcile(once.key)
    if inspect.iscoroutine(verdict):
        verdict.close()
    return verdict


def _body(once: Once, execution: Execution) -> Any:
    token = current.set(execution)
    try:
        if not execution.is_guarded:
            return _guarded(once)
        if once.policy.effect == "transactional":
            return _transaction(once, execution)
        hold = execution._hold = _hold(once, execution, watched=False)
        try:
            return _guarded(once)
        finally:
            hold.stop()
    finally:
        current.reset(token)


def _guarded(once: Once) -> Any:
    if once.guarding is None:
        return _bounded(once, once.call)
    once.guard = once.guarding()
    return once.guard.run()


def _hold(once: Once, execution: Execution, *, watched: bool) -> _core.Hold:
    return once.store.hold(once.key, execution._owner, execution.fence, once.policy.lease, watched)


def _bounded(once: Once, call: Callable[[], Any]) -> Any:
    """Run a plain function within the tool's timeout. It cannot be stopped: it is left behind."""
    timeout = once.policy.timeout
    if timeout is None:
        return _plain(once, call())
    ended: list[tuple[bool, Any]] = []
    done = threading.Event()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            ended.append((True, context.run(call)))
        except BaseException as error:  # noqa: BLE001 raised where the tool was called
            ended.append((False, error))
        finally:
            done.set()

    threading.Thread(target=work, name=f"tidegate-{once.tool}", daemon=True).start()
    if not done.wait(timeout):
        raise TimedOutError
    ok, value = ended[0]
    if ok:
        return _plain(once, value)
    raise value


def _plain(once: Once, value: Any) -> Any:
    """Refuse a coroutine that nobody will await."""
    if inspect.iscoroutine(value):
        value.close()
        raise NoEffectError(
            f"{once.tool} returned a coroutine, which was not run: write it as `async def`",
            tool=once.tool, key=once.key, reason="no_effect",
        )  # fmt: skip
    return value


def _transaction(once: Once, execution: Execution) -> Committed:
    """Run the tool, and commit what it wrote together with its result; or neither."""
    transaction = once.store.transaction()
    assert transaction is not None  # noqa: S101 checked where the tool was declared
    try:
        execution._connection = transaction
        value = _plain(once, once.call())
        codec, data = _codec.encode(value)
        if not transaction._complete(once.key, execution._owner, execution.fence, codec, data):
            raise StaleError
        return Committed(value)
    finally:
        execution._connection = None
        transaction._close()


async def _do_async(once: Once, step: Step) -> Any:
    if isinstance(step, Ask):
        answer = once.store.answer(once.key, step.operation)
        return await _asked(once, step) if answer is None else answer
    if isinstance(step, Body):
        return await _body_async(once, step.execution)
    if isinstance(step, Pause):
        return await _pause(step)
    assert once.policy.reconcile is not None  # noqa: S101 for the type checker
    verdict = once.policy.reconcile(once.key)
    return await verdict if inspect.isawaitable(verdict) else verdict


async def _asked(once: Once, step: Ask) -> Any:
    import asyncio

    from tidegate import _core

    ticket = once.store.submit(once.key, step.operation, step.patience)
    try:
        return await asyncio.shield(ticket.future)
    except asyncio.CancelledError:
        # The claim may succeed all the same; then nobody would execute under it.
        def give_back(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None and future.result()[0] == "acquired":
                owner, fence = step.operation.owner, future.result()[1]
                assert owner is not None  # noqa: S101 only a claim is acquired
                once.store.post(once.key, _core.Operation.fail(owner, fence, False), step.patience)

        ticket.future.add_done_callback(give_back)
        raise


async def _pause(pause: Pause) -> None:
    import asyncio

    if pause.flight is None:
        await asyncio.sleep(pause.seconds)
        return
    loop = asyncio.get_running_loop()
    landed = asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(landed.set)

    pause.flight.on_landing(wake)
    try:
        async with asyncio.timeout(pause.seconds):
            await landed.wait()
    except TimeoutError:
        return


async def _body_async(once: Once, execution: Execution) -> Any:
    token = current.set(execution)
    try:
        return await (_held(once, execution) if execution.is_guarded else _bounded_async(once))
    finally:
        # Collected with its closed loop, it ends in whatever context the collector runs in.
        with contextlib.suppress(ValueError):
            current.reset(token)


async def _held(once: Once, execution: Execution) -> Any:
    """Run the body while its lease is renewed, and no longer."""
    import asyncio

    hold = execution._hold = _hold(once, execution, watched=True)
    assert hold.ticket is not None  # noqa: S101 it is watched
    task, lost, over = asyncio.current_task(), False, False

    def cancel(future: asyncio.Future[Any]) -> None:
        nonlocal lost
        # Told in the same pass in which the body ended, it would hit what comes after.
        if not over and not future.cancelled() and future.exception() is None and task is not None:
            lost = True
            task.cancel()

    hold.ticket.future.add_done_callback(cancel)
    try:
        return await _bounded_async(once)
    except asyncio.CancelledError:
        # Cancelled by the loss of the lease alone: to the caller this is a failure, not a cancellation.
        if lost and task is not None and task.uncancel() == 0:
            raise LeaseLostError from None
        raise
    finally:
        over = True
        hold.ticket.future.remove_done_callback(cancel)
        hold.stop()


async def _bounded_async(once: Once) -> Any:
    import asyncio

    if once.guarding is not None:
        once.guard = once.guarding()
        return await once.guard.run_async()
    if once.policy.timeout is None:
        return await once.call()
    try:
        async with asyncio.timeout(once.policy.timeout) as bound:
            return await once.call()
    except TimeoutError as error:
        if bound.expired():
            raise TimedOutError from error
        raise
