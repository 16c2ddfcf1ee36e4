"""TREC-6 with MiniLM: four ways to adapt it (Q1), each at a rate chosen on validation, and the configuration chosen among these, five longer ones and a committee

    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR            # all that is decided, from the training questions
    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR --final    # and the 500 test questions: the four and the chosen one (of a committee its members) trained anew on all 5,452 questions, five seeds

545 held-out questions say what comes into question: one seed each, then three for rates less than a point behind the best and the geometric mean of two such. Between rates of the same error, and between configurations less than a point behind the best, three of five folds of the training questions decide, 3,271 questions; one that occurs twice is in one fold.
The mean of the probabilities of four of these, one of each kind, is one more configuration: a committee. What it gains on the folds stands beside what as many seeds of one configuration and one more gain.

References are the errors of the NAACL 2019 tutorial on transfer learning (a transformer of its own, not MiniLM), whose settings these are: batches of 16, 3 epochs, adapters of width 32 at ten times the rate, the LM loss at half weight for
6 epochs; the rate is the tutorial's 6.5e-5 or one of two higher ones, since MiniLM is a fifth of that model. With the LM loss, five times the work of the others, the highest rate is not tried, nor one in between, and one seed decides. `--work` keeps finished rows: the same command goes on after it was stopped.
"""
import numpy as np, pandas as pd
from classify import Rows, trained
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
    'layer decay, 8 epochs, mix of layers':dict(epochs=8, hidden_states='mix', **decay),
    'layer decay, 6 epochs, R-Drop':dict(epochs=6, r_drop=2., **decay),
    'layer decay, 6 epochs, LM loss':dict(epochs=6, lm=.5, **decay),
}
settings = arms | longer
members = 'fine-tuning','layer decay, 4 epochs','layer decay, 6 epochs, R-Drop','layer decay, 6 epochs, LM loss'
committee = 'the mean of four'
n_folds,folds = 5,3 # of which are held out

def load():
    "(training questions with a tenth of them held out, test questions)"
    from fastformers.data.labels import split_rows
    df,test = [read(o)[['text','label']] for o in data_files('trec/train.csv', 'trec/test.csv')]
    return df.assign(is_valid=np.isin(np.arange(len(df)), split_rows(df, None, .1, names=[[o] for o in df.label])[1])), test

def fold_of(df):
    "The fold of each question, about as many of each class in each"
    from sklearn.model_selection import StratifiedGroupKFold
    res = np.empty(len(df), int)
    for k,(_,held) in enumerate(StratifiedGroupKFold(n_folds, shuffle=True, random_state=0).split(df, df.label, df.text)): res[held] = k
    return res

def answers(part, df, seed, arm, lr):
    "Error in % on the validation rows of `df`, and ten-thousandths of the probabilities behind it"
    p,y = trained(df, seed, lr=lr, **settings[arm]).get_preds()
    return {part:100*float((p.argmax(1)!=y).float().mean()), 'probabilities':(p*1e4).round().int().tolist()}

def hits(rows, df):
    "Which validation rows of `df` the mean of the probabilities of `rows` has right"
    return np.mean([o['probabilities'] for o in rows], 0).argmax(1)==pd.Categorical(df.label).codes[df.is_valid.to_numpy()]

def error(hits): return 100*(1-float(np.mean(hits)))

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/trec_adapt'), help='directory of what is under way')
    args = p.parse_args()
    (df,test),rows,seeds = load(),Rows(args.work),[int(o) for o in args.seeds.split(',')]
    whole,fold = pd.concat([df.assign(is_valid=False), test.assign(is_valid=True)], ignore_index=True),fold_of(df) # nothing is chosen by the test questions
    from fastformers.stats import paired_bootstrap # takes seconds to load
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    def made(part, data, arm, lr, seed, **at): return rows.get(lambda: answers(part, data, seed, arm, lr), part, arm=arm, lr=lr, seed=seed, **at, **settings[arm])
    def valid(arm, lr, seed=seeds[0]): return made('validation', df, arm, lr, seed)['validation']
    def held(k): return df.assign(is_valid=fold==k)
    def by_fold(arm, lr, seed=seeds[0]): return [made('held out', held(k), arm, lr, seed, fold=k) for k in range(folds)]
    def fold_error(arm, lr): return np.mean([o['held out'] for o in by_fold(arm, lr)])
    def together(groups): return np.concatenate([hits(o, held(k)) for k,o in enumerate(zip(*groups))])
    grid = {arm:{lr*times.get(arm, 1):valid(arm, lr*times.get(arm, 1)) for lr in (lrs[:2] if arm==slow else lrs if arm in arms else lrs[1:2])} for arm in settings}
    def rate(arm):
        near = [lr for lr,e in grid[arm].items() if e<min(grid[arm].values())+1]
        if len(near)==1 or arm==slow: return min(near, key=grid[arm].get)
        means = {lr:round(np.mean([valid(arm, lr, s) for s in seeds[:3]]), 3) for lr in (*near, float(f'{np.prod(near)**(1/len(near)):.2g}'))}
        ties = [lr for lr,e in means.items() if e==min(means.values())]
        return ties[0] if len(ties)==1 else min(ties, key=lambda lr: fold_error(arm, lr))
    best = {arm:rate(arm) for arm in settings}
    first = {arm:valid(arm, best[arm]) for arm in settings}
    close = {arm:fold_error(arm, best[arm]) for arm in settings if first[arm]<min(first.values())+1}
    each = [by_fold(arm, best[arm]) for arm in members]
    alone,all_four = np.array([together([o]) for o in each]),together(each)
    of_four = [error(hits(o, held(k))) for k,o in enumerate(zip(*each))]
    close[committee] = np.mean(of_four)
    chosen = min(close, key=close.get)
    one = members[1]
    of_seeds = [by_fold(one, best[one], s) for s in seeds]
    def gain(other): return [round(100*o, 2) for o in paired_bootstrap(all_four, other)]
    gains = {'members':[round(error(o), 2) for o in alone], 'gain over their mean, 95 % interval':gain(alone.mean(0)), 'over the best':gain(alone[alone.mean(1).argmax()]), 'errors that all share':int((~alone).all(0).sum()),
             f'seeds of {one}':[round(error(together([o])), 2) for o in of_seeds], 'their mean':round(error(together(of_seeds)), 2)}
    def name(arm): return f'{arm}, {best[arm]:g}' if arm in best else arm
    def table(part, of): return {name(arm):stat(of(arm)) | ({'reference':naacl[arm]} if arm in naacl else {}) for arm in (settings if part=='validation' else dict.fromkeys(sorted([*arms, *(members if chosen==committee else ()), chosen], key=slow.__eq__)))}
    def test_rows(arm): return [made('test', whole, arm, best[arm], s) for s in seeds]
    def tested(arm): return [o['test'] for o in test_rows(arm)] if arm!=committee else [error(hits(o, whole)) for o in zip(*map(test_rows, members))]
    on_valid = table('validation', lambda arm: [o['validation'] for o in rows.all if 'validation' in o and (o['arm'],o['lr'])==(arm,best[arm]) and o['seed'] in seeds]) # of one seed or of three
    by_folds = {f'{committee}, fold {k}':round(e, 2) for k,e in enumerate(of_four)} | {f"{o['arm']}, {o['lr']:g}, seed {o['seed']}, fold {o['fold']}":round(o['held out'], 2) for o in rows.all if 'held out' in o and o['arm'] in settings}
    print(f'\nvalidation error %, seed {seeds[0]}, by rate', *(f"  {arm:38} "+'  '.join(f'{lr:g}: {e:.2f}' for lr,e in o.items()) for arm,o in grid.items()), f'\nchosen on validation: {chosen}', sep='\n')
    test = {'test':{'test error %':table('test', tested)}} if args.final else {}
    save('trec_adapt', args, dict(settings=settings, lrs=lrs, times=times, seeds=seeds, n_folds=n_folds, folds=folds, committee=members), {'by rate':grid, 'error % by folds':by_folds, committee:gains, 'chosen':chosen, 'minutes':round(sum(o['minutes'] for o in rows.all), 1), 'validation error %':on_valid, **test}, args.final)

if __name__=='__main__': main()
