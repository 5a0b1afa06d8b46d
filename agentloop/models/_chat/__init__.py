"""Chat Completions. Requests, items and answers are pure; `constrained` is for models too small for a tool protocol."""
