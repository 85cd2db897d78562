"""Conversations to text with the model's own template, and which characters of it contribute to the loss.

forms     rows of JSON or of tables to conversations: messages, ShareGPT, prompt and completion, preference pairs
variables further variables of a template, of a job and of single rows
render    a template as a function, sandboxed, with the blocks that ``{% generation %}`` marks
values    messages as templates see them: the keys that are read, and arguments of tool calls as JSON
answers   where answers begin and end, proven by rendering other conversations
learned   the characters that contribute to the loss, by the rule of the job
checks    stop tokens, something to learn, and keys that have an effect
reader    finds the template, and reads documents in a child process: the text of each row, with these characters
"""
