"""Is the rate that `lr_sweep` suggests as good as the best of eight? MiniLM, some hundred labels, two data sets

    FASTFORMERS_DATA=... python benchmarks/lr_sweep.py --work DIR

For each data set and seed: a sweep, fine-tuning at eight rates, and at the one that is suggested; all with frozen embeddings, which saves a third of the time. Training and validation rows are drawn from the training set once; seeds differ in the head's weights, dropout and order. No test set is read.
`--work` keeps finished rows: the same command goes on after it was stopped. A rate whose error with the first seed is more than 10 points above the best is not tried with the others.

The rule was chosen on another draw of rows than this one (`results/lr_sweep_rule.json`: three seeds, 400 validation rows): of the fractions 1/12 to 1/3 of the rate with the lowest loss, by the error at the eight rates, interpolated. Other rules (fastai's `minimum`, `valley` and `steep`, the place where half of the fall is done) are compared in the same way.
"""
import math
import numpy as np, pandas as pd
from classify import Rows, last_only
from common import *

sets = {'TREC-6':dict(file='trec/train.csv', n=600, max_len=32), 'AG News':dict(file='agnews/train_10k.csv.gz', n=480, max_len=32)}
n_valid,bs,epochs,discr,draw = 2000,16,2,1.11,1
fractions = 12,10,8,6,4,3
grid = [float(f'{o:.2g}') for o in np.geomspace(1e-5, 2e-3, 8)]

def load(file, n, **kwargs):
    "`n` rows to train on and `n_valid` others, both from the training set"
    df = read(data_files(file)[0])[['text','label']].drop_duplicates('text').sample(n+n_valid, random_state=draw).reset_index(drop=True)
    return df.assign(is_valid=df.index>=n)

def learner(df, max_len, seed):
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    from fastformers.callback.compute import cpu_bf16
    set_seed(seed)
    learn = classifier_learner(classifier_dls(df, 'minilm', bs=bs, max_len=max_len, seed=seed), 'minilm', cbs=[cpu_bf16(), last_only()])
    learn.freeze_to(1)
    return learn

def sweep(learn):
    from fastformers.callback.lr_find import find_fall, mean_curve, sweep_losses
    rates = np.geomspace(1e-6, .1, 40)
    runs = sweep_losses(learn, rates, discr=discr)
    curves = mean_curve(runs, rates)
    return {**find_fall(runs, rates)._asdict(), 'rates':curves.index.tolist(), 'curves':curves.round(4).T.values.tolist()}

def train(learn, lr):
    from fastformers.callback.schedule import Schedule
    with learn.no_logging(): learn.fit_schedule(lambda n: Schedule([[0]+[1]*(n-1)]), lr=lr, epochs=epochs, discr=discr)
    return {'error':round(100*(1-float(learn.recorder.values[-1][2])), 2)}

def half(o):
    "The rate at which half of the fall is done"
    mean,rates = np.mean(o['curves'], 0),np.log(o['rates'])
    best = mean.argmin()
    level = (mean[:10].mean()+mean[best])/2
    i = np.flatnonzero(mean[:best]>level)[-1]
    return float(np.exp(np.interp(-level, -mean[i:i+2], rates[i:i+2])))

def rules(sweeps):
    "The rate that each rule reads from the mean curve of each sweep"
    from fastai.callback.schedule import minimum, steep, valley
    from torch import tensor
    res = {'lr_sweep':[o['lr'] for o in sweeps], **{f'lowest / {k}':[o['high']/k for o in sweeps] for k in fractions}, 'half of the fall':[half(o) for o in sweeps]}
    for f in (minimum, valley, steep): res[f'fastai: {f.__name__}'] = [f(tensor(o['rates']), tensor(np.mean(o['curves'], 0)), None)[0] for o in sweeps]
    return res

def report(args, rows):
    "A table for each data set; whether the suggestion is within one standard deviation of the best rate"
    res = {}
    for name in sets:
        mine = [o for o in rows if o['set']==name]
        at = {lr:[o['error'] for o in mine if o.get('lr')==lr and o['kind']=='rate'] for lr in grid}
        stats,sweeps = {f'{lr:g}':stat(v) for lr,v in at.items()},[o for o in mine if o['kind']=='sweep']
        means = [np.mean(v) for v in at.values()]
        best = grid[int(np.argmin(means))]
        suggested = stat([o['error'] for o in mine if o['kind']=='suggested'])
        interpolated = {k:{'rates':[round(float(o), 7) for o in v], 'error':round(float(np.mean(np.interp(np.log(v), np.log(grid), means))), 2)} for k,v in rules(sweeps).items()}
        res[name] = {'validation error %':stats, 'best rate':best, 'suggested':[{k:float(f'{o[k]:.2g}') for k in ('lr','low','high')} for o in sweeps], 'error at the suggested':suggested,
                     'within one sd of the best':bool(suggested['mean']<=stats[f'{best:g}']['mean']+stats[f'{best:g}']['sd']), 'rules, error interpolated':interpolated,
                     'seconds':{k:round(float(np.mean([60*o['minutes'] for o in mine if o['kind']==k])), 1) for k in ('sweep','rate')}, 'curves':[{k:o[k] for k in ('rates','curves')} for o in sweeps]}
        print(f'\n{name}, validation error %', *(f'  {k:8} {v["mean"]:6.2f} ± {v["sd"] or math.nan:.2f}' for k,v in stats.items()), f'  suggested {suggested["mean"]:.2f} ± {suggested["sd"]:.2f} at {[o["lr"] for o in res[name]["suggested"]]}',
              *(f'  {k:28} {v["error"]:6.2f} at {v["rates"]}' for k,v in interpolated.items()), sep='\n')
    save('lr_sweep', args, dict(sets=sets, n_valid=n_valid, bs=bs, epochs=epochs, discr=discr, draw=draw, grid=grid, arch='minilm'), res)

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/lr_sweep'), help='directory of finished rows')
    args = p.parse_args()
    quiet()
    rows = Rows(args.work, n_valid=n_valid, bs=bs, epochs=epochs, discr=discr, draw=draw)
    def once(kind, name, seed, lr, f):
        "Do it unless it is done; its row"
        return rows.get(lambda: {'lr':lr, **f(learner(data[name], sets[name]['max_len'], seed))}, 'kind', kind=kind, set=name, seed=seed, **({'lr':lr} if kind=='rate' else {}))
    data,seeds = {k:load(**v) for k,v in sets.items()},[int(o) for o in args.seeds.split(',')]
    for seed in seeds:
        for name in sets:
            found = once('sweep', name, seed, None, sweep)
            first = {o['lr']:o['error'] for o in rows.all if (o['kind'],o['set'],o['seed'])==('rate',name,seeds[0])}
            for lr in grid:
                if seed==seeds[0] or first[lr]<=min(first.values())+10: once('rate', name, seed, lr, lambda learn: train(learn, lr))
            once('suggested', name, seed, found['lr'], lambda learn: train(learn, found['lr']))
    report(args, rows.all)

if __name__=='__main__': main()
