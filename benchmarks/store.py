"""What tokenizing a corpus once costs: texts/s beside the bare tokenizer and beside fastai's default one

    FASTFORMERS_DATA=... python benchmarks/store.py            # about three minutes on two cores

Paragraphs of `wiki_en`. With one worker everything happens on one thread; with two, fastai starts two processes, the tokenizer of the store and the bare one take two threads.
fastai's tokenizer (spaCy, with its rules) gets a tenth of the texts, gives words, and is not asked to make numbers of them. How memory grows with a corpus is in corpus_size.py.
"""
import os, tempfile, time
from functools import partial
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='true', HF_HUB_OFFLINE='1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
from timing import *
from common import data_files, save

def texts_of(n_chars):
    "The first paragraphs of `wiki_en`, `n_chars` characters of them"
    from fastformers.text.readers import read_texts
    texts = read_texts(*data_files('wiki_en/train.txt.gz')).text.str.split('\n').explode()
    return texts[texts.str.len().cumsum()<=n_chars].tolist()

def speed(d, texts, workers, repeats):
    "Texts/s of the bare `encode_batch`, which keeps nothing, of `TokenStore`, `HFTokenizer.encode_batch` and fastai's `Tokenizer.from_df`, in turn"
    import pandas as pd
    from fastai.text.core import Tokenizer, tokenize_df
    from fastformers.text.store import TokenStore
    from fastformers.text.encode import HFTokenizer
    tok = HFTokenizer('minilm')
    few = pd.DataFrame(dict(text=texts[::10]))
    processes = 0 if workers==1 else workers
    def bare(f):
        for i in range(0, len(texts), 1000): f(texts[i:i+1000])
        return len(texts)
    def store(): return len(TokenStore.build(texts, tok, d/'speed', overwrite=True))
    def fastai():
        t = Tokenizer.from_df('text') # as `TextBlock.from_df` makes it
        return len(tokenize_df(few, t.text_cols, n_workers=processes, rules=t.rules, tok=t.tok)[0])
    def texts_s(f):
        start,n = time.perf_counter(),f()
        return n/(time.perf_counter()-start)
    fs = dict(encode_batch=partial(bare, tok.rust.encode_batch), encode_batch_fast=partial(bare, tok.rust.encode_batch_fast), store=store, tokens=lambda: len(tok.encode_batch(texts)), fastai=fastai)
    for f in (store,fastai): f() # processes and rules are imported once
    return in_turn({k:partial(texts_s, f) for k,f in fs.items()}, repeats, lambda o: f'{o:9.0f} texts/s')

def main():
    p = parser(__doc__)
    p.add_argument('--mb', type=float, default=10, help='megabytes of text')
    args = p.parse_args()
    fig,rows,texts = {'texts/s':{}},[],texts_of(args.mb*1e6)
    with tempfile.TemporaryDirectory() as tmp:
        for w in (1,2):
            os.environ['RAYON_NUM_THREADS'] = str(w) # what a new process lets the bare tokenizer use
            print(f'{w} worker{"s"*(w>1)}')
            res = in_fresh_process(speed, Path(tmp), texts, w, args.repeats)
            fig['texts/s'][f'{w} workers'] = {k:spread(v) for k,v in res.items()}
            for k in ('store','tokens') if w==1 else ('store',):
                rows += [(f'S4 {k}, {w} worker{"s"*(w>1)}: share of encode_batch', ratio(res[k], res['encode_batch']), '>=', .9),
                         ('   share of encode_batch_fast', ratio(res[k], res['encode_batch_fast']), '', None),
                         ("   times fastai's default tokenizer", ratio(res[k], res['fastai']), '>=', 5.)]
    fig['targets'] = targets(*rows)
    save('store', args, vars(args), fig)

if __name__=='__main__': main()
