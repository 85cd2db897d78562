def translate(*a, **k): raise NotImplementedError
