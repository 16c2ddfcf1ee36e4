"""Does the memory of Transformer-XL pay? A small network trained with and without it on equal tokens of Wikipedia

    FASTFORMERS_DATA=... python benchmarks/transformer_xl.py      # some four minutes of one core

Networks of 2 x 128, byte-level BPE of 4,000 pieces, embeddings that start from counts, rows of 256 tokens, segments of 32, a memory of 64, batches of 4 rows, Adam at 2e-3 with one cycle, one thread, fp32.
Perplexity is that of a piece on validation articles, where a row has a memory: behind its first segment. `window`: the network without memory reads the last 32 tokens anew for each token, as in the paper."""
import math
import torch
from common import *

sizes = dict(hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
segment,seq_len,bs,lr = 32,256,4,2e-3

def data(n_train, n_valid):
    "A tokenizer, and articles with about so many tokens"
    from fastformers.text.encode import HFTokenizer
    from fastformers.text.readers import read_texts
    from fastformers.text.train_tokenizer import train_tokenizer
    texts = [read_texts(o).text.sample(frac=1, random_state=0).tolist() for o in data_files('wiki_en/train.txt.gz','wiki_en/valid.txt.gz')]
    tok = train_tokenizer(texts[0][:400], 'bpe', 4000)
    def first(texts, n): return texts[:int(np.searchsorted(np.cumsum([len(o) for o in HFTokenizer(tok).encode_batch(texts[:200])]), n))+1]
    parts = [pd.DataFrame(dict(text=first(o, n), is_valid=v)) for o,n,v in zip(texts, (n_train,n_valid), (False,True))]
    return tok,pd.concat(parts, ignore_index=True)

def losses(learn):
    "Loss of the next token for each position of each validation row, NaN without one"
    res = []
    for x,y in learn.dls.valid:
        o = torch.full(y.shape, torch.nan)
        logp = learn.model(x.replace(predicted=y>=0)).log_softmax(-1)
        for i,(p,t) in enumerate(zip(logp, y)): o[i,t>=0] = -p[:int((t>=0).sum())].gather(1, t[t>=0][:,None])[:,0]
        res.append(o[:,segment:])
    n = max(o.shape[1] for o in res)
    return torch.cat([torch.nn.functional.pad(o, (0,n-o.shape[1]), value=torch.nan) for o in res])

def windows(learn):
    "The same, each token predicted from the last `segment` tokens, read anew"
    res = []
    for x,y in learn.dls.valid:
        if x.shape[1]<=segment: continue
        at = x.ids.unfold(1, segment, 1)[:,1:] # its last token is the one that predicts
        h = learn.model.body(at.flatten(0, 1))[0][:,-1]
        logp = learn.model.hf.lm_head(h).log_softmax(-1).view(*at.shape[:2], -1)
        t = y[:,segment:]
        o = -logp.gather(2, t.clamp(min=0)[...,None])[...,0]
        res.append(torch.where(t>=0, o, torch.nan).flatten())
    return torch.cat(res)

def ppl(o): return round(math.exp(float(o.nanmean())), 1)

def run(tok, df, mem_len, seed):
    import fastformers.learner.counts # `start_from_counts`
    from fastai.torch_core import set_seed
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    from fastformers.models.families import evaluating
    from fastformers.objectives.clm import CLM
    from fastformers.papers.transformer_xl import TransformerXLConfig
    set_seed(seed)
    dls = lm_dls(df, tok, CLM(tok), seq_len=seq_len, bs=bs, seed=seed, packing='full-sentences', device='cpu')
    learn = lm_learner(dls, TransformerXLConfig(vocab_size=len(tok), **sizes, segment=segment, mem_len=mem_len), precision='fp32')
    learn.start_from_counts()
    start = time.process_time()
    with learn.no_bar(): learn.fit_one_cycle(1, lr)
    res = {'seed':seed, 'mem_len':mem_len, 'training tokens':int(dls.train.lengths.sum()), 'training seconds':round(time.process_time()-start)}
    with evaluating(learn.model):
        own = losses(learn)
        res |= {'tokens':int(own.isfinite().sum()), 'perplexity':ppl(own)}
        if not mem_len: return res|{'window':ppl(windows(learn))}
        learn.model.config.mem_len = 0
        forgets = losses(learn)
    def by_place(o): return [round(float(o[:,i::segment].nanmean()), 3) for i in range(segment)]
    return res|{'without memory':ppl(forgets), 'loss by place':by_place(own), 'loss by place without memory':by_place(forgets)}

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('--tokens', type=int, default=300_000)
    p.add_argument('--valid', type=int, default=60_000)
    p.set_defaults(seeds='1')
    args = p.parse_args()
    quiet()
    torch.set_num_threads(1)
    tok,df = data(args.tokens, args.valid)
    rows = [run(tok, df, m, int(s)) for s in args.seeds.split(',') for m in (64,0)]
    for o in rows: print({k:v for k,v in o.items() if 'place' not in k})
    save('transformer_xl', args, dict(sizes, segment=segment, seq_len=seq_len, bs=bs, lr=lr, precision='fp32'), {'rows':rows})
