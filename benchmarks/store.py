"""What a token store costs: texts/s beside the bare tokenizer, peak memory for a corpus and one ten times as large, the second use of `encode_df`'s cache

    python benchmarks/store.py            # about five minutes on two cores
"""
import json, multiprocessing as mp, os, tempfile, threading, time
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='true', HF_HUB_OFFLINE='1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
from common import parser, save

def texts_of(n_chars):
    "Documents of about `n_chars` characters: `docs_corpus` again and again, each copy with a prefix"
    from fastformers.corpora import docs_corpus
    docs,copy = list(docs_corpus().text),0
    while n_chars>0:
        copy += 1
        for o in docs:
            o = f'Copy {copy}. {o}'.replace('\n', ' ')
            yield o
            if (n_chars := n_chars-len(o))<=0: return

def rss_anon(pid='self'): return next(int(o.split()[1]) for o in Path(f'/proc/{pid}/status').read_text().splitlines() if o.startswith('RssAnon'))/1024

class Peak:
    "Highest RssAnon of this process and its children while inside, MiB"
    def __enter__(self):
        self.mb,self.on = 0,True
        self.t = threading.Thread(target=self._watch); self.t.start()
        return self
    def _watch(self):
        kids = Path(f'/proc/self/task/{os.getpid()}/children')
        while self.on:
            own,total = rss_anon(),0
            for o in kids.read_text().split():
                try: total += rss_anon(o)
                except (OSError, StopIteration): pass
            self.mb = max(self.mb, own+total)
            time.sleep(.05)
    def __exit__(self, *args): self.on = False; self.t.join()

def memory(path, out, n_workers):
    "Peak memory of building a store from the file `path`, and of one pass over its rows"
    from fastformers.data import lm_dls
    from fastformers.store import TokenStore
    from fastformers.tokens import HFTokenizer
    tok = HFTokenizer('minilm'); tok('a')
    start = time.time()
    with Peak() as build: store = TokenStore.build(path, tok, out, n_workers=n_workers, progress=False)
    took = time.time()-start
    with Peak() as read:
        dls = lm_dls(store, tok, bs=64, device='cpu')
        for i,_ in enumerate(dls.train):
            if i==200: break
    start = time.time(); TokenStore(out); opened = time.time()-start
    return dict(mb=Path(path).stat().st_size/1e6, build_s=took, build_peak=build.mb, read_peak=read.mb, open_ms=opened*1e3, tokens=store.total['values'])

def in_fresh_process(f, *args):
    with mp.get_context('spawn').Pool(1) as p: return p.apply(f, args)

def speed(d, n_chars, n_workers, repeats=3):
    "Texts/s of the bare `encode_batch`, which keeps nothing, and of building a store, one after the other, best of `repeats`"
    from fastformers.store import TokenStore
    from fastformers.tokens import HFTokenizer
    texts,tok,res = list(texts_of(n_chars)),HFTokenizer('minilm'),{}
    for _ in range(repeats):
        start = time.time()
        for i in range(0, len(texts), 1000): tok._rust.encode_batch(texts[i:i+1000])
        res.setdefault('encode_batch', []).append(len(texts)/(time.time()-start))
        start = time.time()
        for i in range(0, len(texts), 1000): tok._rust.encode_batch_fast(texts[i:i+1000])
        res.setdefault('encode_batch_fast', []).append(len(texts)/(time.time()-start))
        for w in n_workers:
            start = time.time()
            TokenStore.build(texts, tok, d/'speed', n_workers=w, progress=False, overwrite=True)
            res.setdefault(f'store, n_workers={w}', []).append(len(texts)/(time.time()-start))
    return {k:max(v) for k,v in res.items()}

def cache(d, n_chars, repeats=3):
    "Seconds of `encode_df` with an empty cache, and again"
    import pandas as pd
    from fastformers.tokens import HFTokenizer, encode_df
    df,tok,res = pd.DataFrame(dict(text=list(texts_of(n_chars)))),HFTokenizer('minilm'),[]
    for i in range(1+repeats):
        start = time.time()
        encode_df(df, tok, cache=d/'cache')
        res.append(time.time()-start)
    return dict(texts=len(df), chars=int(df.text.str.len().mean()), first_s=res[0], second_s=min(res[1:]), ratio=res[0]/min(res[1:]))

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--mb', type=float, nargs=2, default=(20,200), help='sizes of the two corpora')
    args = p.parse_args()
    small,large = (int(o*1e6) for o in args.mb)
    with tempfile.TemporaryDirectory() as tmp:
        d = Path(tmp)
        fig = {'texts/s':in_fresh_process(speed, d, small//2, (0,1,2)), 'cache':in_fresh_process(cache, d, small), 'memory':[]}
        for n in (small,large):
            with open(d/f'{n}.txt', 'w') as f: f.writelines(o+'\n' for o in texts_of(n))
            fig['memory'].append(in_fresh_process(memory, d/f'{n}.txt', d/f's{n}', 0))
    a,b = fig['memory']
    fig['ratios'] = {'store/encode_batch':fig['texts/s']['store, n_workers=0']/fig['texts/s']['encode_batch'], 'cache':fig['cache']['ratio'], 'peak, build':b['build_peak']/a['build_peak'],
                     'peak, read':b['read_peak']/a['read_peak']}
    print(json.dumps(fig, indent=1))
    save('store', args, {}, fig)

if __name__=='__main__': main()
