"What a label means: classes, numbers, tags of words, spans, the best of several candidates (never imports fastai at import)"
