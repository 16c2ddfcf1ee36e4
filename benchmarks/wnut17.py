"""Named entities of WNUT-17: the task `tags` beside Hugging Face's `Trainer`, the same body, rows, epochs, batch size and precision

    FASTFORMERS_DATA=... python benchmarks/wnut17.py --work DIR            # a rate for each contender, of three, on dev (one seed); then the seeds
    FASTFORMERS_DATA=... python benchmarks/wnut17.py --work DIR --final    # and the test sentences

1,500 of the 3,394 sentences of tweets to train (all with --full), 1,009 to choose, 1,287 to test; MiniLM, 128 tokens, 3 epochs, batches of 16, float32. Ours is `fine_tune_classifier` as it comes (`TokenHead`, one-cycle, layer decay);
the `Trainer` has `AutoModelForTokenClassification` and its own defaults (linear decay) with a tenth of warm-up. Both predict the first token of each word. Score: F1 of spans, in %.
"""
import numpy as np
from classify import last_only
from common import *
from glue import against_trainer, hf_trained

lrs,epochs,bs,max_len,n_train = (5e-5,1e-4,2e-4),3,16,128,1500
files = [f'wnut17/{o}.conll' for o in ('train','dev','test')]
origin.update({o:'davidsbatista/NER-datasets WNUT17 (Derczynski et al. 2017): token TAB tag, a blank line between sentences' for o in files})

def load(final, few, full):
    "(train and dev sentences, test sentences or None): columns text, words, and label, tags"
    from fastformers.text.readers import read_texts
    train,dev,test = map(read_texts, data_files(*files))
    if not full: train = train.sample(n_train, random_state=42)
    if few: train,dev,test = train[:few],dev[:few],test[:few]
    return pd.concat([train.assign(is_valid=False), dev.assign(is_valid=True)], ignore_index=True), test if final else None

def span_f1(found, wanted):
    "F1 in % of lists of tags"
    from fastformers.tasks.tags import spans_of
    pairs = [({*spans_of(a)}, {*spans_of(b)}) for a,b in zip(found, wanted)]
    right,n = sum(len(a&b) for a,b in pairs),sum(len(a)+len(b) for a,b in pairs)
    return 200*right/max(n, 1)

def ours(df, test, seed, lr):
    from fastformers.ulmfit.stage import fine_tune_classifier
    stage = fine_tune_classifier(df, 'minilm', valid_col='is_valid', task='tags', test=test, max_len=max_len, bs=bs, epochs=epochs, lr=lr, seed=seed, precision='fp32', cbs=last_only())
    return {'validation':100*stage.metrics['span_f1'], **({} if test is None else {'test':100*stage.test['span_f1']})}

def trainer(df, test, seed, lr):
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification, set_seed
    from fastformers.hub import resolve_arch
    path = str(resolve_arch('minilm'))
    tok,names = AutoTokenizer.from_pretrained(path),sorted({t for o in df.label[~df.is_valid] for t in o})
    def row(words, tags):
        enc = tok(list(words), is_split_into_words=True, truncation=True, max_length=max_len)
        at = enc.word_ids()
        return {**enc, 'labels':[-100 if w is None or w in at[:i] else names.index(tags[w]) for i,w in enumerate(at)]}
    def rows(part): return [row(w, t) for w,t in zip(part.text, part.label)]
    set_seed(seed)
    model = AutoModelForTokenClassification.from_pretrained(path, num_labels=len(names))
    with hf_trained(model, rows(df[~df.is_valid]), DataCollatorForTokenClassification(tok), seed, lr, epochs, bs) as t:
        def of(part):
            o = t.predict(rows(part))
            found = [[names[p] for p,y in zip(ps, ys) if y!=-100] for ps,ys in zip(o.predictions.argmax(-1), o.label_ids)]
            return span_f1(found, part.label)
        return {'validation':of(df[df.is_valid]), **({} if test is None else {'test':of(test)})}

if __name__=='__main__':
    against_trainer('wnut17', __doc__, 'all training sentences, for a GPU', load, dict(ours=ours, trainer=trainer), lrs, {'span F1 %':float},
                    dict(n_train=n_train), epochs=epochs, bs=bs, max_len=max_len)
