"""Chat completions with streaming, as opencode's adapter for OpenAI-compatible providers asks for them."""

import json

from .server import Model


class Chat(Model):
    path = "/v1/chat/completions"

    def answer(self, handler, body, label, step):
        def event(delta, finish=None, **more):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            head = {"id": f"chatcmpl-{label}", "object": "chat.completion.chunk", "created": 0, "model": body.get("model")}
            handler.event({**head, "choices": [choice], **more})

        handler.stream()
        event({"role": "assistant", "content": step.get("text", "")})
        for place, (tool, arguments) in enumerate(step.get("calls", [])):
            function = {"name": tool, "arguments": json.dumps(arguments)}
            one = {"index": place, "id": f"call_{label}_{place}", "type": "function", "function": function}
            event({"tool_calls": [one]})
        usage = {
            "prompt_tokens": 1200,
            "completion_tokens": 42,
            "total_tokens": 1242,
            "prompt_tokens_details": {"cached_tokens": 200},
        }
        event({}, "tool_calls" if "calls" in step else "stop", usage=usage)
        handler.event("[DONE]")
