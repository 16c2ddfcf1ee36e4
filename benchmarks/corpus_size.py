"""A corpus ten times as large: peak memory of building its token store and of training from it, and tokens/s of that training

    FASTFORMERS_DATA=... python benchmarks/corpus_size.py --dir /scratch      # some ten minutes; needs 2 GB there, which it deletes again

`wiki_en` again and again, each paragraph of a copy with a prefix, until there are 100 MB and 1 GB. Building (one thread) and training (60 steps of a tiny BERT) each run in a process of their own;
the peak is the highest RssAnon of it and its children. Training from the two sizes is repeated in turn.
"""
import gzip, os, shutil, tempfile, time
from functools import partial
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
from timing import *
from common import data_files, quiet, save

def write_corpus(source, path, n_bytes):
    "`n_bytes` of the paragraphs in `source` at `path`, a line each"
    copy = size = 0
    with open(path, 'wb') as out:
        while True:
            copy += 1
            for o in gzip.open(source, 'rb'):
                if not o.strip(): continue
                size += out.write(f'Copy {copy}: '.encode()+o)
                if size>=n_bytes: return path

def build(path, out):
    "Build a store from `path`: MiB at the peak, and seconds"
    from fastformers.text.store import TokenStore
    from fastformers.text.encode import HFTokenizer
    tok = HFTokenizer('minilm'); tok('a')
    base,start = rss_anon(),time.perf_counter()
    with Peak() as peak: store = TokenStore.build(path, tok, out)
    return dict(start_mib=base, peak_mib=peak.mb, s=time.perf_counter()-start, documents=len(store), tokens=len(store.tokens))

def train(out, steps, threads):
    "Train `steps` steps of a tiny BERT on rows of the store `out`: MiB at the peak, tokens/s of the steps, and seconds from the store to the first step's end"
    import torch
    from fastai.callback.core import Callback, CancelFitException
    from transformers import BertConfig
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    from fastformers.text.store import TokenStore
    from fastformers.text.encode import HFTokenizer
    torch.set_num_threads(threads)
    quiet()
    class Ticks(Callback):
        order = 1000
        def after_batch(self):
            tokens.append(self.x.numel())
            if clock.tick(self.loss): raise CancelFitException
    tok,clock,tokens,start = HFTokenizer('minilm'),Clock(steps, warm=5),[],time.perf_counter()
    base = rss_anon()
    with Peak() as peak:
        dls = lm_dls(TokenStore(out), tok, bs=32, device='cpu')
        learn = lm_learner(dls, BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128))
        with learn.no_bar(): learn.fit(1, 1e-3, cbs=Ticks())
    return dict(start_mib=base, peak_mib=peak.mb, rows=len(dls.train_ds), first_step_s=clock.at[0][0]-start, **clock.result(tokens))

def says(o): return f"{o['peak_mib']:7.0f} MiB (from {o['start_mib']:.0f})" + (f", {o['s']:7.1f} s" if 's' in o else f", {says_tokens(o)}; first step after {o['first_step_s']:.1f} s")

def main():
    p = parser(__doc__, repeats=3)
    p.add_argument('--mb', type=float, nargs=2, default=(100,1000), help='sizes of the two corpora')
    p.add_argument('--steps', type=int, default=60)
    p.add_argument('--dir', default=None, help='where corpora and stores are written and deleted; default: the directory for temporary files')
    args = p.parse_args()
    source = data_files('wiki_en/train.txt.gz')[0]
    os.environ['RAYON_NUM_THREADS'] = str(args.threads)
    with tempfile.TemporaryDirectory(dir=args.dir) as tmp:
        d,sizes = Path(tmp),[f'{o:g} MB' for o in args.mb]
        def make(i):
            path = write_corpus(source, d/f'{i}.txt', int(args.mb[i]*1e6))
            try: return in_fresh_process(build, path, d/f's{i}')
            finally: path.unlink()
        built = in_turn({k:partial(make, i) for i,k in enumerate(sizes)}, 1, says)
        trained = in_turn({k:partial(in_fresh_process, train, d/f's{i}', args.steps, args.threads) for i,k in enumerate(sizes)}, args.repeats, says)
    small,large = sizes
    def grown(runs, k): return ratio(*([o[k] for o in runs[s]] for s in (large,small)))
    clock,cpu = times(trained, small, large)
    fig = {'build':built, 'train':trained, 'targets':targets(
        ('S8 peak memory of building, 1 GB / 100 MB', grown(built, 'peak_mib'), '<=', 1.2), ('S8 peak memory of training', grown(trained, 'peak_mib'), '<=', 1.2),
        ('S8 tokens/s of training, 100 MB / 1 GB', clock, '<=', 1.1), ('   the same by processor time', cpu, '<=', 1.1),
        ('   MB/s of building, 1 GB', args.mb[1]/built[large][0]['s'], '', None), ('   seconds to the first step, 1 GB', spread([o['first_step_s'] for o in trained[large]]), '', None))}
    save('corpus_size', args, {k:v for k,v in vars(args).items() if k!='dir'}, fig)

if __name__=='__main__': main()
