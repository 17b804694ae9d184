"""The Responses API with streaming, as Codex CLI asks for it."""

import json

from .server import Model


class Responses(Model):
    path = "/v1/responses"

    def is_main(self, body):
        # The title of a session is asked for with a schema of its answer, beside the task and in any order.
        return "format" not in body.get("text", {})

    def answer(self, handler, body, label, step):
        items = []
        if "text" in step:
            content = [{"type": "output_text", "text": step["text"]}]
            items.append({"type": "message", "id": f"msg_{label}", "role": "assistant", "content": content})
        for place, (tool, arguments) in enumerate(step.get("calls", [])):
            ids = {"call_id": f"call_{label}_{place}", "name": tool}
            if set(arguments) == {"text"}:
                items.append({"type": "custom_tool_call", "id": f"ctc_{label}_{place}", **ids, "input": arguments["text"]})
            else:
                items.append(
                    {"type": "function_call", "id": f"fc_{label}_{place}", **ids, "arguments": json.dumps(arguments)}
                )

        def event(name, **value):
            handler.event({"type": name, **value}, name)

        handler.stream()
        event("response.created", response={"id": f"resp_{label}"})
        for place, item in enumerate(items):
            event("response.output_item.added", output_index=place, item=item)
            event("response.output_item.done", output_index=place, item=item)
        usage = {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 500},
            "output_tokens": 40,
            "output_tokens_details": {"reasoning_tokens": 8},
            "total_tokens": 1040,
        }
        event("response.completed", response={"id": f"resp_{label}", "usage": usage})
