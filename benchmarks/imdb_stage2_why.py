"""Why does stage 2 buy MiniLM what it buys on IMDb? Settings of the language model, a million tokens each, beside the body as it came and the one of imdb_stage2.py

    FASTFORMERS_DATA=... python benchmarks/imdb_stage2_why.py --work DIR        # `DIR` as for imdb_stage2.py; some two hours on one thread

For each: a linear probe of every layer (logistic regression on the mean of a review's states, 2,500 training and 2,000 validation reviews of other movies), which needs no luck of fine-tuning, and for the arms of
`--tune` the classifier of imdb_stage2.py with 500 labels. Validation only. `--work` keeps what is done: the same command goes on after it was stopped.
"""
import json
import numpy as np, pandas as pd
from classify import Rows
from common import *
from imdb import sample
from imdb_stage2 import adapt, body, classify, lm_settings, load, schedule_of, warm, words

n_tokens,probe_rows = 1_000_000,2500
variants = {
    'as in imdb_stage2.py':{},
    'body at a tenth of that rate':dict(body=body/10),
    'body at the rate of the head':dict(body=1.),
    'head alone for half of the pass':dict(warm=.5),
    'mask rate 30 %':dict(p=.3),
    '256 tokens':dict(seq_len=256, bs=16, words=2*words),
    'all reviews, body at a tenth of that rate':dict(body=body/10, tokens=10**9),
}

def train_lm(path, unsup, tokens, body=body, warm=warm, p=.15, words=words, **changed):
    "The directory of stage 2 with other settings, on `tokens` tokens or so"
    from fastformers.objectives.mlm import MLM
    from fastformers.text.tokenizer import HFTokenizer
    from fastformers.ulmfit.stage import fine_tune_lm
    if not (path/'stage.json').exists():
        texts = [' '.join(o.split()[:words]) for o in unsup.sample(frac=1, random_state=0).text]
        n = np.searchsorted(np.cumsum([1.3*len(o.split()) for o in texts]), tokens)  # 1.3 tokens a word
        s = fine_tune_lm(texts[:n], 'minilm', path, objective=MLM(HFTokenizer('minilm'), p=p), schedule=schedule_of(warm, body), resume=str(path)+'_checkpoints', **{**lm_settings, **changed})
    return path

def probe(arch, train, valid):
    "Error in % of a logistic regression on the mean of the states of each layer, embeddings first"
    import torch
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from fastformers.models.load import load_body
    from fastformers.models.heads import mean_pool
    from fastformers.text.tokenizer import load_tokenizer
    net,tok = load_body(arch)[0].eval(),load_tokenizer(arch)
    def features(df):
        order,res = np.argsort(df.text.str.len().to_numpy()),None
        for i in np.array_split(order, max(len(df)//32, 1)):
            x = tok(df.text.iloc[i].tolist(), truncation=True, max_length=128, padding=True, return_tensors='pt')
            with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16): hs = net(**x, output_hidden_states=True).hidden_states
            o = torch.stack([mean_pool(h, x['attention_mask']) for h in hs], 1).numpy()
            res = np.zeros((len(df), *o.shape[1:]), o.dtype) if res is None else res
            res[i] = o
        return res
    a,b = features(train),features(valid)
    def error(i):
        m = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=[.001,.01,.1], cv=3, max_iter=500))
        return round(100*(1-m.fit(a[:,i], train.label).score(b[:,i], valid.label)), 2)
    return [error(i) for i in range(a.shape[1])]

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/imdb_stage2'), help='directory of what is under way')
    p.add_argument('--tune', default='', help='names of arms to fine-tune with 500 labels, separated by ";"')
    p.add_argument('--tokens', type=float, default=n_tokens, help='of each language model')
    args = p.parse_args()
    quiet()
    train,valid,_,texts,unsup = load(n_valid=2000)
    work = args.work/'why'
    arms = {'as it came':lambda: 'minilm', 'all reviews':lambda: adapt(args.work, texts)}
    arms |= {k:(lambda k=k,o=o: train_lm(work/k.replace(' ', '_'), unsup, **{'tokens':args.tokens, **o})) for k,o in variants.items()}
    rows = Rows(work, words=words, lm=lm_settings, warm=warm, body=body, tokens=args.tokens, probe_rows=probe_rows)
    def probed(make):
        arch = make()
        stage = json.loads((arch/'stage.json').read_text()) if isinstance(arch, Path) else {}
        return dict(probe=probe(arch, sample(train, probe_rows, 0), valid), loss=stage.get('metrics',{}).get('loss'), lm_minutes=round(stage.get('seconds',0)/60, 1))
    probes = {k:{o:row[o] for o in ('probe','loss','lm_minutes')} for k,make in arms.items() for row in [rows.get(lambda: probed(make), 'probe', arm=k)]}
    for k in filter(None, args.tune.split(';')):
        for seed in map(int, args.seeds.split(',')): rows.get(lambda: classify(arms[k](), train, valid, None, 500, seed, False), arm=k, seed=seed)
    print(f"\nerror % of a linear probe on each layer, {len(valid)} validation reviews", *(f"  {k:34} LM loss {o['loss'] or float('nan'):5.2f}  "+' '.join(f'{e:6.2f}' for e in o['probe']) for k,o in probes.items()), sep='\n')
    tuned = pd.DataFrame([o for o in rows.all if 'validation' in o])
    save('imdb_stage2_why', args, dict(lm=lm_settings, words=words, warm=warm, body=body, variants=variants, tokens=args.tokens, probe_rows=probe_rows),
         {'probe error % by layer':probes, 'validation error %':{k:stat(g.validation) for k,g in tuned.groupby('arm')} if len(tuned) else {}})

if __name__=='__main__': main()
