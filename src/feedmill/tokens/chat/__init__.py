"""Conversations to text with the model's own template, and which characters of it contribute to the loss.

job       the verb ``tokenize`` of conversations: its options, once or once for each side of preference pairs
forms     rows of JSON or of tables to conversations: messages, ShareGPT, prompt and completion, preference pairs
values    what templates see: messages, of which they read some keys, arguments of tool calls as JSON, and variables
render    a template as a function, sandboxed, with the blocks that ``{% generation %}`` marks
answers   the characters that contribute to the loss: where answers begin and end, by rendering other conversations
shapes    texts and loss of conversations of a shape that was rendered before; watched: words that note what is asked
checks    stop tokens, something to learn, and keys that have an effect
reader    finds the template, and reads documents in a child process: the text of each row, with these characters
"""
