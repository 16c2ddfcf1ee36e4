"""The next sentence among four: the task `choice` beside Hugging Face's `Trainer`, the same body, rows, epochs, batch size and precision

    FASTFORMERS_DATA=... python benchmarks/choice.py --work DIR            # a rate for each contender, of two, on validation articles (one seed); then the seeds
    FASTFORMERS_DATA=... python benchmarks/choice.py --work DIR --final    # and the test articles

English Wikipedia: two sentences of a paragraph, and four candidates for the one that follows; the other three are from other articles (`--full`: from elsewhere in the article, which is harder). 240 rows to train, 250 validation, 250 test, from articles of their own (`--full`: 3,000, 600 and 600). MiniLM, 128 tokens, 2 epochs,
batches of 8, float32. Ours is `fine_tune_classifier` as it comes; the `Trainer` has `AutoModelForMultipleChoice`, linear decay and a tenth of warm-up. Score: accuracy in %; chance is 25.
"""
import re
import numpy as np
from classify import last_only
from common import *
from glue import against_trainer, hf_trained

lrs,epochs,bs,max_len = (1e-4,2e-4),2,8,128
files = [f'wiki_en/{o}.txt.gz' for o in ('train','valid','test')]
origin.update({o:'English Wikipedia, plain text: `= Title =`, a paragraph a line, blank line between articles' for o in files})

def next_sentences(articles, n, same, seed=42):
    "`n` rows: text (two sentences of a paragraph), candidates (the next sentence and three others, of the `same` article or not), label"
    rng,rows = np.random.default_rng(seed),[]
    paras = [[[s for s in re.split(r'(?<=[.!?])\s+(?=[A-Z])', p) if 30<len(s)<300] for p in o.split('\n')] for o in articles]
    while len(rows)<n:
        o = paras[rng.integers(len(paras))]
        long = [p for p in o if len(p)>2]
        if not long: continue
        p = long[rng.integers(len(long))]
        i = rng.integers(len(p)-2)
        pool = o if same else [q for j in rng.integers(0, len(paras), 3) if paras[j] is not o for q in paras[j]]
        others = sorted({s for q in pool for s in q}-{*p[i:i+3]})
        if len(others)<3: continue
        candidates,label = [*rng.choice(others, 3, replace=False)],int(rng.integers(4))
        candidates.insert(label, p[i+2])
        rows.append((' '.join(p[i:i+2]), [*map(str, candidates)], label))
    return pd.DataFrame(rows, columns=['text','candidates','label'])

def load(final, few, full):
    "(training and validation rows, test rows or None)"
    from fastformers.text.readers import read_texts
    ns = (few,)*3 if few else (3000,600,600) if full else (240,250,250)
    train,valid,test = (next_sentences(read_texts(f).text.tolist(), n, full) for f,n in zip(data_files(*files), ns))
    return pd.concat([train.assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True), test if final else None

def ours(df, test, seed, lr):
    from fastformers.ulmfit.stage import fine_tune_classifier
    stage = fine_tune_classifier(df, 'minilm', text_col=['text','candidates'], valid_col='is_valid', task='choice', test=test, max_len=max_len, bs=bs, epochs=epochs, lr=lr, seed=seed,
                                 precision='fp32', cbs=last_only())
    return {'validation':100*stage.metrics['accuracy'], **({} if test is None else {'test':100*stage.test['accuracy']})}

def trainer(df, test, seed, lr):
    import torch
    from transformers import AutoModelForMultipleChoice, AutoTokenizer, set_seed
    from fastformers.hub import resolve_arch
    path = str(resolve_arch('minilm'))
    tok = AutoTokenizer.from_pretrained(path)
    def rows(part): return [dict(text=t, candidates=c, labels=l) for t,c,l in zip(part.text, part.candidates, part.label)]
    def collate(batch):
        e = tok([o['text'] for o in batch for _ in o['candidates']], [c for o in batch for c in o['candidates']], truncation=True, max_length=max_len, padding=True, return_tensors='pt')
        return {k:v.view(len(batch), 4, -1) for k,v in e.items()} | {'labels':torch.tensor([o['labels'] for o in batch])}
    set_seed(seed)
    model = AutoModelForMultipleChoice.from_pretrained(path)
    with hf_trained(model, rows(df[~df.is_valid]), collate, seed, lr, epochs, bs, 32, remove_unused_columns=False) as t:
        def of(part): return 100*float((t.predict(rows(part)).predictions.argmax(-1)==part.label).mean())
        return {'validation':of(df[df.is_valid]), **({} if test is None else {'test':of(test)})}

if __name__=='__main__':
    against_trainer('choice', __doc__, '3,000 rows, and candidates from the same article', load, dict(ours=ours, trainer=trainer), lrs, {'accuracy %':float},
                    epochs=epochs, bs=bs, max_len=max_len)
