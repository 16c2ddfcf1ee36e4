"""TREC-6 with MiniLM: four ways to adapt it (Q1), each at a rate chosen on validation, and the configuration chosen among these and four longer ones

    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR            # all that is decided, from the training questions
    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR --final    # and the 500 test questions: the four and the chosen one trained anew on all 5,452 questions, five seeds

545 held-out questions say what comes into question: one seed each, then three for rates less than a point behind the best and the geometric mean of two such. Between rates of the same error, and between configurations less than a point behind the best, three of five folds of the training questions decide, 3,271 questions; one that occurs twice is in one fold.

References are the errors of the NAACL 2019 tutorial on transfer learning (a transformer of its own, not MiniLM), whose settings these are: batches of 16, 3 epochs, adapters of width 32 at ten times the rate, the LM loss at half weight for
6 epochs; the rate is the tutorial's 6.5e-5 or one of two higher ones, since MiniLM is a fifth of that model. With the LM loss, five times the work of the others, the highest rate is not tried, nor one in between, and one seed decides. `--work` keeps finished rows: the same command goes on after it was stopped.
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
    'layer decay, 6 epochs, LM loss':dict(epochs=6, lm=.5, **decay),
}
settings = arms | longer
n_folds,folds = 5,3 # of which are held out

def load():
    "(training questions with a tenth of them held out, test questions)"
    from fastformers.data import split_rows
    df,test = [read(o)[['text','label']] for o in data_files('trec/train.csv', 'trec/test.csv')]
    return df.assign(is_valid=np.isin(np.arange(len(df)), split_rows(df, None, .1, 0, df.label)[1])), test

def fold_of(df):
    "The fold of each question, about as many of each class in each"
    from sklearn.model_selection import StratifiedGroupKFold
    res = np.empty(len(df), int)
    for k,(_,held) in enumerate(StratifiedGroupKFold(n_folds, shuffle=True, random_state=0).split(df, df.label, df.text)): res[held] = k
    return res

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/trec_adapt'), help='directory of what is under way')
    args = p.parse_args()
    (df,test),rows,seeds = load(),Rows(args.work),[int(o) for o in args.seeds.split(',')]
    whole,fold = pd.concat([df.assign(is_valid=False), test.assign(is_valid=True)], ignore_index=True),fold_of(df) # nothing is chosen by the test questions
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    def row(arm, lr, seed, part='validation'): return rows.get(lambda: {part:train(df if part=='validation' else whole, seed, lr=lr, **settings[arm])}, part, arm=arm, lr=lr, seed=seed, **settings[arm])
    def held_out(arm, lr): return [rows.get(lambda: {'held out':train(df.assign(is_valid=fold==k), seeds[0], lr=lr, **settings[arm])}, 'held out', arm=arm, lr=lr, seed=seeds[0], fold=k, **settings[arm])['held out'] for k in range(folds)]
    grid = {arm:{lr*times.get(arm, 1):row(arm, lr*times.get(arm, 1), seeds[0])['validation'] for lr in (lrs[:2] if arm==slow else lrs if arm in arms else lrs[1:2])} for arm in settings}
    def mean(arm, lr, n): return np.mean([row(arm, lr, s)['validation'] for s in seeds[:n]])
    def rate(arm):
        near = [lr for lr,e in grid[arm].items() if e<min(grid[arm].values())+1]
        if len(near)==1 or arm==slow: return min(near, key=grid[arm].get)
        means = {lr:round(mean(arm, lr, 3), 3) for lr in (*near, float(f'{np.prod(near)**(1/len(near)):.2g}'))}
        ties = [lr for lr,e in means.items() if e==min(means.values())]
        return ties[0] if len(ties)==1 else min(ties, key=lambda lr: np.mean(held_out(arm, lr)))
    best = {arm:rate(arm) for arm in settings}
    first = {arm:row(arm, best[arm], seeds[0])['validation'] for arm in settings}
    chosen = min((arm for arm in settings if first[arm]<min(first.values())+1), key=lambda arm: np.mean(held_out(arm, best[arm])))
    def table(part, of): return {f'{arm}, {best[arm]:g}':stat(of(arm)) | ({'reference':naacl[arm]} if arm in naacl else {}) for arm in (settings if part=='validation' else dict.fromkeys(sorted([*arms, chosen], key=slow.__eq__)))}
    valid = table('validation', lambda arm: [o['validation'] for o in rows.all if 'validation' in o and (o['arm'],o['lr'])==(arm,best[arm]) and o['seed'] in seeds]) # of one seed or of three
    by_folds = {f"{o['arm']}, {o['lr']:g}, fold {o['fold']}":round(o['held out'], 2) for o in rows.all if 'held out' in o and o['arm'] in settings}
    print(f'\nvalidation error %, seed {seeds[0]}, by rate', *(f"  {arm:38} "+'  '.join(f'{lr:g}: {e:.2f}' for lr,e in o.items()) for arm,o in grid.items()), f'\nchosen on validation: {chosen}', sep='\n')
    test = {'test':{'test error %':table('test', lambda arm: [row(arm, best[arm], s, 'test')['test'] for s in seeds])}} if args.final else {}
    save('trec_adapt', args, dict(settings=settings, lrs=lrs, times=times, seeds=seeds, n_folds=n_folds, folds=folds), {'by rate':grid, 'error % by folds':by_folds, 'chosen':chosen, 'minutes':round(sum(o['minutes'] for o in rows.all), 1), 'validation error %':valid, **test}, args.final)

if __name__=='__main__': main()
