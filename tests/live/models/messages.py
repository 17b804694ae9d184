"""The Messages API with streaming, as Claude Code asks for it."""

import json

from .server import Model


class Messages(Model):
    path = "/v1/messages"

    def answer(self, handler, body, label, step):
        blocks = [{"type": "text", "text": step["text"]}] if "text" in step else []
        for place, (tool, arguments) in enumerate(step.get("calls", [])):
            blocks.append({"type": "tool_use", "id": f"toolu_01{label}{place:02d}", "name": tool, "input": arguments})
        stop = "tool_use" if "calls" in step else "end_turn"
        usage = {
            "input_tokens": 40,
            "cache_creation_input_tokens": 900,
            "cache_read_input_tokens": 12000,
            "output_tokens": 57,
        }
        message = {
            "id": f"msg_01{label:>020}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": dict(usage, output_tokens=1),
        }
        if not body.get("stream"):
            return handler.plain(200, dict(message, content=blocks, stop_reason=stop, usage=usage))

        def event(name, **value):
            handler.event({"type": name, **value}, name)

        handler.stream()
        event("message_start", message=message)
        for place, block in enumerate(blocks):
            if block["type"] == "text":
                empty, delta = dict(block, text=""), {"type": "text_delta", "text": block["text"]}
            else:
                empty = dict(block, input={})
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            event("content_block_start", index=place, content_block=empty)
            event("content_block_delta", index=place, delta=delta)
            event("content_block_stop", index=place)
        event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
        event("message_stop")
