"""The endpoints of a server, an application of starlette: bodies are read within limits, texts become tokens beside the
loop of events, and the batcher answers."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.generation import Reply
from rewrites.serving.batcher import Batcher, BatchOutcome, QueuedRequest
from rewrites.serving.completion_replies import COMPLETED_BY, Completion, ReadCompletion
from rewrites.serving.prepared_requests import PREPARED_BY, Prepare, PreparedRequest
from rewrites.serving.refusals import Refused, invalid
from rewrites.serving.served_models import Served, ServedSpeaker
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits
from rewrites.serving.speaker import QueuedReply, ReplyEvent, Speaker

T = TypeVar("T")
READER_THREADS = 2  # threads that turn texts into tokens, and numbers into replies
CLIENT_GONE = 499  # nobody reads the reply; the number that nginx logs
GONE = Refused(CLIENT_GONE, "the client is gone", code="gone")
JSON = "application/json"
Respond = Callable[[Request], Awaitable[Response]]
SERVER_LOG = logging.getLogger("opmatrix.serving")


class Endpoints:
    """The endpoints of models, with one batcher for all of them."""

    def __init__(self, models: Served, limits: ServingLimits, counters: ServingCounters) -> None:
        self.models, self.limits, self.counters = models, limits, counters
        self.batcher = Batcher(limits, counters)
        self.speakers = {
            name: Speaker(model.program, limits, counters)
            for name, model in models.items()
            if isinstance(model, ServedSpeaker)
        }
        self.runners: list[Batcher | Speaker] = [self.batcher, *self.speakers.values()]
        self.readers = ThreadPoolExecutor(READER_THREADS, "texts")
        self.open = 0
        self.began = int(time.time())

    def application(self) -> Starlette:
        """Return the application, which closes the batcher at its end."""
        answers: dict[str, Respond] = {path: partial(self.compute, prepare) for path, prepare in PREPARED_BY.items()}
        answers |= {path: partial(self.reply, read) for path, read in COMPLETED_BY.items()}
        routes = [Route(path, partial(self.answer, answer), methods=["POST"]) for path, answer in answers.items()]
        routes += [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.show_model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        return Starlette(routes=routes, lifespan=self.life, exception_handlers={HTTPException: refuse_route})

    @asynccontextmanager
    async def life(self, application: Starlette) -> AsyncIterator[None]:
        """Answer what waits once the server takes no more requests, and end the threads."""
        try:
            yield
        finally:
            for runner in self.runners:
                await asyncio.to_thread(runner.close)
            self.readers.shutdown()

    # ---- texts

    async def answer(self, respond: Respond, request: Request) -> Response:
        """Answer a request of texts, or say in an error object why not."""
        began = time.monotonic()
        self.count_open(1)
        try:
            if self.open > self.limits.requests:
                raise Refused(
                    429, f"{self.limits.requests} requests are open: ask again later", code="too_many_requests"
                )
            with in_words_of_clients():
                reply = await respond(request)
            self.counters.add("answered_total", 1)
            return reply
        except Refused as refused:
            self.counters.add("failed_total" if refused.status >= 500 else "refused_total", 1)
            return as_reply(refused)
        finally:
            self.count_open(-1)
            self.counters.add("request_seconds_total", time.monotonic() - began)

    def count_open(self, change: int) -> None:
        """Add to the number of requests that are open."""
        self.open += change
        self.counters.set("open_requests", self.open)

    async def compute(self, prepare: Prepare, request: Request) -> Response:
        """Return the rows of texts, or what becomes of them. Raises Refused."""
        body = await self.read_body(request)
        prepared = await self.beside(partial(prepare, self.models, self.limits, body))
        numbers = await self.wait_for(prepared, request)
        return Response(await self.beside(partial(prepared.write, numbers)), media_type=JSON)

    async def read_body(self, request: Request) -> bytes:
        """Return the body of a request. Raises Refused for one that is too long, or takes too long to come, and where
        it is cut short."""
        most, body = self.limits.body, bytearray()
        too_long = Refused(413, f"the body has more than {most:,} bytes: ask for fewer texts at once")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_long
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise too_long
        except TimeoutError:
            raise Refused(408, f"the body did not come within {self.limits.seconds:g} seconds") from None
        except ClientDisconnect:
            raise Refused(CLIENT_GONE, "the body was cut short", code="cut_short") from None
        return bytes(body)

    async def beside(self, call: Callable[[], T]) -> T:
        """Return the result of a call that a thread of `readers` makes."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call)

    async def wait_for(self, prepared: PreparedRequest, request: Request) -> Floats:
        """Return the numbers of a request's texts. It is given up where nobody reads its reply, or it takes too long.
        Raises Refused."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Floats] = loop.create_future()
        queued = QueuedRequest(prepared.lane, prepared.rows, partial(hand_outcome, loop, answered))
        self.batcher.submit(queued)
        gone = asyncio.ensure_future(tell_gone(request, answered))
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await answered
        except TimeoutError:
            seconds = f"{self.limits.seconds:g} seconds"
            raise Refused(504, f"not computed within {seconds}: ask for fewer texts, or again later") from None
        finally:
            gone.cancel()
            self.batcher.give_up(queued)

    # ---- replies of language models

    async def reply(self, read: ReadCompletion, request: Request) -> Response:
        """Return a reply, or a stream of it whose first piece of text is there. Raises Refused."""
        body = await self.read_body(request)
        completion = await self.beside(lambda: Completion.of(self.models, read(body)))
        pieces = self.pieces(completion, request)
        if completion.request.streamed:
            first = await anext(pieces, "")
            return StreamingResponse(self.stream(completion, first, pieces), media_type="text/event-stream")
        async for _ in pieces:
            pass
        return Response(completion.whole(), media_type=JSON)

    async def pieces(self, completion: Completion, request: Request) -> AsyncGenerator[str]:
        """Yield the pieces of a reply as they are written. It is given up where nobody reads it, or where the next
        piece takes too long. Raises Refused."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[ReplyEvent]()
        queued = QueuedReply(completion.reply, completion.request.options.sampling, partial(hand_event, loop, events))
        speaker = self.speakers[completion.model.name]
        speaker.submit(queued)
        gone = None if completion.request.streamed else asyncio.ensure_future(await_end(request, events))
        try:
            while True:
                async with asyncio.timeout(self.limits.seconds):
                    event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Reply):
                    return
                yield event
        except TimeoutError:
            seconds = f"{self.limits.seconds:g} seconds"
            raise Refused(504, f"nothing was written within {seconds}: ask again later") from None
        finally:
            if gone is not None:
                gone.cancel()
            speaker.give_up(queued)

    async def stream(self, completion: Completion, first: str, pieces: AsyncGenerator[str]) -> AsyncIterator[bytes]:
        """Yield the chunks of a reply; one that ends in an error ends in its object."""
        self.count_open(1)
        try:
            for chunk in completion.begun():
                yield chunk
            with in_words_of_clients():
                for chunk in completion.pieces(first):
                    yield chunk
                async for piece in pieces:
                    for chunk in completion.pieces(piece):
                        yield chunk
            for chunk in completion.ended():
                yield chunk
        except Refused as refused:
            yield b"data: " + refused.body + b"\n\n"
        finally:
            self.count_open(-1)
            await pieces.aclose()

    # ---- models and health

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        entries = [model.described | {"created": self.began} for model in self.models.values()]
        return JSONResponse({"object": "list", "data": entries})

    async def show_model(self, request: Request) -> Response:
        """Show a model."""
        if (model := self.models.get(request.path_params["name"])) is None:
            there = ", ".join(self.models)
            return as_reply(Refused(404, f"model: there are {there}", "model", "model_not_found"))
        return JSONResponse(model.described | {"created": self.began})

    async def health(self, request: Request) -> Response:
        """Say that requests are answered."""
        if not all(runner.thread.is_alive() for runner in self.runners):
            return as_reply(Refused(503, "no batch is computed: start the server again", code="server_ends"))
        return JSONResponse({"status": "ok", "models": [*self.models]})

    async def metrics(self, request: Request) -> Response:
        """Show the counters of all processes."""
        return PlainTextResponse(self.counters.text(), media_type="text/plain; version=0.0.4")


@contextmanager
def in_words_of_clients() -> Iterator[None]:
    """Raise Refused in place of other errors: InputError is the client's, anything else a fault, which is logged."""
    try:
        yield
    except Refused:
        raise
    except InputError as error:
        raise invalid(str(error)) from error
    except Exception as error:
        SERVER_LOG.exception("a fault in opmatrix")
        raise Refused(500, f"a fault in opmatrix: {type(error).__name__}: see the log of the server") from error


def hand_event(loop: asyncio.AbstractEventLoop, events: "asyncio.Queue[ReplyEvent]", event: ReplyEvent) -> None:
    """Hand an event of a reply from the thread that writes to the loop; not if the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(events.put_nowait, event)


async def await_end(request: Request, events: "asyncio.Queue[ReplyEvent]") -> None:
    """Refuse a reply once its client is gone."""
    await await_disconnect(request)
    events.put_nowait(GONE)


async def await_disconnect(request: Request) -> None:
    """Wait until the client of a request is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def hand_outcome(loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[Floats]", outcome: BatchOutcome) -> None:
    """Hand numbers, or an error, from the thread of batches to the loop; neither if the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle_future, answered, outcome)


def settle_future(answered: "asyncio.Future[Floats]", outcome: BatchOutcome) -> None:
    """Set the result of a request that somebody still waits for."""
    if answered.done():
        return
    if isinstance(outcome, Exception):
        answered.set_exception(outcome)
    else:
        answered.set_result(outcome)


async def tell_gone(request: Request, answered: "asyncio.Future[Floats]") -> None:
    """Refuse a request once its client is gone."""
    await await_disconnect(request)
    settle_future(answered, GONE)


def as_reply(refused: Refused) -> Response:
    """Return a refusal as a reply."""
    return Response(refused.body, refused.status, refused.headers, JSON)


async def refuse_route(request: Request, error: Exception) -> Response:
    """Answer a path or a method that there is none of."""
    assert isinstance(error, HTTPException)
    there = ", ".join([*PREPARED_BY, *COMPLETED_BY, "/v1/models", "/health", "/metrics"])
    reply = as_reply(Refused(error.status_code, f"{request.method} {request.url.path[:80]}: there are {there}"))
    reply.headers.update(error.headers or {})
    return reply
