"""The gateway: several engines, of one model or of many, behind one OpenAI-compatible address."""
