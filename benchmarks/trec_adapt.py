"""TREC-6 with MiniLM: four ways to adapt it (Q1), each at a rate chosen on validation, and the configuration chosen among these and four longer ones

    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR            # rates on one seed, those less than a point behind the best on three; 545 validation questions drawn from train
    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR --final    # and the 500 test questions: the four and the chosen one trained anew on all 5,452 questions, five seeds

References are the errors of the NAACL 2019 tutorial on transfer learning (a transformer of its own, not MiniLM), whose settings these are: batches of 16, 3 epochs, adapters of width 32 at ten times the rate, the LM loss at half weight for
6 epochs; the rate is the tutorial's 6.5e-5 or one of two higher ones, since MiniLM is a fifth of that model. With the LM loss, five times the work of the others, the highest rate is not tried and one seed decides. `--work` keeps finished rows: the same command goes on after it was stopped.
"""
import numpy as np, pandas as pd
from classify import Rows, train
from common import *

lrs = (6.5e-5, 2e-4, 5e-4)
naacl = {'fine-tuning':3.6, 'adapters':4.0, 'gradual unfreezing':5.2, 'with the LM loss':3.4}
times = {'adapters':10} # the rate
slow = 'with the LM loss'
arms = {
    'fine-tuning':dict(epochs=3),
    'adapters':dict(epochs=3, width=32),
    'gradual unfreezing':dict(epochs=3, schedule='gradual_unfreeze'),
    'with the LM loss':dict(epochs=6, lm=.5),
}
decay = dict(bs=32, discr=1.11)
longer = { # at the middle rate only
    'layer decay, 4 epochs':dict(epochs=4, **decay),
    'layer decay, 8 epochs':dict(epochs=8, **decay),
    'layer decay, 8 epochs, mix of layers':dict(epochs=8, layers='mix', **decay),
    'layer decay, 6 epochs, R-Drop':dict(epochs=6, r_drop=2., **decay),
}
settings = arms | longer

def load():
    "(training questions with a tenth of them held out, test questions)"
    from fastformers.data import split_rows
    df,test = [read(o)[['text','label']] for o in data_files('trec/train.csv', 'trec/test.csv')]
    return df.assign(is_valid=np.isin(np.arange(len(df)), split_rows(df, None, .1, 0, df.label)[1])), test

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/trec_adapt'), help='directory of what is under way')
    args = p.parse_args()
    (df,test),rows,seeds = load(),Rows(args.work),[int(o) for o in args.seeds.split(',')]
    whole = pd.concat([df.assign(is_valid=False), test.assign(is_valid=True)], ignore_index=True) # nothing is chosen by its second part
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    def row(arm, lr, seed, part='validation'): return rows.get(lambda: {part:train(df if part=='validation' else whole, seed, lr=lr, **settings[arm])}, part, arm=arm, lr=lr, seed=seed)
    grid = {arm:{lr*times.get(arm, 1):row(arm, lr*times.get(arm, 1), seeds[0])['validation'] for lr in (lrs[:2] if arm==slow else lrs if arm in arms else lrs[1:2])} for arm in settings}
    def mean(arm, lr, n): return np.mean([row(arm, lr, s)['validation'] for s in seeds[:n]])
    def rate(arm):
        "The rate of the lowest validation error; those that one seed puts within a point of the best, about its standard error, three decide"
        near = [lr for lr,e in grid[arm].items() if e<min(grid[arm].values())+1]
        return min(near, key=lambda lr: mean(arm, lr, 1 if len(near)==1 or arm==slow else 3))
    best = {arm:rate(arm) for arm in settings}
    chosen = min(sorted(settings, key=lambda arm: grid[arm][best[arm]])[:2], key=lambda arm: mean(arm, best[arm], 3))
    def table(part, of): return {f'{arm}, {best[arm]:g}':stat(of(arm)) | ({'reference':naacl[arm]} if arm in naacl else {}) for arm in (settings if part=='validation' else dict.fromkeys(sorted([*arms, chosen], key=slow.__eq__)))}
    valid = table('validation', lambda arm: [o['validation'] for o in rows.all if 'validation' in o and (o['arm'],o['lr'])==(arm,best[arm]) and o['seed'] in seeds]) # of one seed or of three
    print(f'\nvalidation error %, seed {seeds[0]}, by rate', *(f"  {arm:38} "+'  '.join(f'{lr:g}: {e:.2f}' for lr,e in o.items()) for arm,o in grid.items()), f'\nchosen on validation: {chosen}', sep='\n')
    test = {'test':{'test error %':table('test', lambda arm: [row(arm, best[arm], s, 'test')['test'] for s in seeds])}} if args.final else {}
    save('trec_adapt', args, dict(settings=settings, lrs=lrs, times=times, seeds=seeds), {'by rate':grid, 'chosen':chosen, 'minutes':round(sum(o['minutes'] for o in rows.all), 1), 'validation error %':valid, **test}, args.final)

if __name__=='__main__': main()
