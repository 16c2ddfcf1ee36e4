"""Scores and decisions: calibration error before and after a temperature (AG News), F1 with thresholds of 0.5 and with chosen ones (GoEmotions)

    FASTFORMERS_DATA=... python benchmarks/decisions.py            # AG News measured on 1,000 other rows of train_10k, GoEmotions on 1,000 of dev
    FASTFORMERS_DATA=... python benchmarks/decisions.py --final    # AG News on 1,000 test rows

MiniLM, 64 tokens, 3 epochs, batches of 16, 2e-4. AG News: 1,000 training rows, the temperature from 500 others. GoEmotions: 3,000 training rows, thresholds from 1,000 others.
Nothing else is chosen on those rows. Intervals are percentiles over 1,000 draws of the measured rows with replacement, for one trained network a seed.
"""
import numpy as np
from classify import trained
from common import *

config = dict(arch='minilm', max_len=64, epochs=3, bs=16, lr=2e-4)
origin['agnews/test.csv.gz'] = 'AG News, its test rows, as CSV text,label'
origin.update({f'goemotions/{o}':'GoEmotions (Demszky et al. 2020), as CSV text,labels,id' for o in ('train.csv.gz','dev.csv')})

def draws(n, f):
    "95 % interval of `f(rows)` over draws of `n` rows"
    rng = np.random.default_rng(0)
    return [round(float(o), 4) for o in np.percentile([f(rng.integers(0, n, n)) for _ in range(1000)], [2.5,97.5])]

def split(df, n_train, n_valid, n_rest=0):
    "The first rows of `df` in a random order: training and validation rows as one table, and the rest"
    df = df.sample(n_train+n_valid+n_rest, random_state=0, ignore_index=True)
    return df[:n_train+n_valid].assign(is_valid=lambda o: o.index>=n_train), df[n_train+n_valid:].reset_index(drop=True)

def agnews(seed, final):
    from fastformers.interpret.decisions import expected_calibration_error
    from fastformers.learner import calibration # `calibrate`
    from torch.nn.functional import nll_loss
    train,test = data_files('agnews/train_10k.csv.gz', 'agnews/test.csv.gz')
    df,rest = split(read(train), 1000, 500, 1000)
    if final: rest = read(test).sample(1000, random_state=0)
    learn = trained(df, seed, **config)
    dl = learn.dls.test_dl(rest, with_labels=True)
    def figures():
        p,y = learn.get_preds(dl=dl)
        return p,y, {'accuracy':float((p.argmax(1)==y).float().mean()), 'mean score':float(p.max(1).values.mean()), 'log-loss':float(nll_loss(p.log(), y)),
            'expected calibration error':expected_calibration_error(p, y), 'interval':draws(len(y), lambda o: expected_calibration_error(p[o], y[o]))}
    with learn.no_bar():
        p,y,before = figures()
        temperature = learn.calibrate()
        q,_,after = figures()
    gain = draws(len(y), lambda o: expected_calibration_error(p[o], y[o])-expected_calibration_error(q[o], y[o]))
    return dict(seed=seed, temperature=temperature, before=before, after=after, interval_of_the_gain=gain)

def goemotions(seed):
    from sklearn.metrics import f1_score
    from fastformers.tasks.core import task_of
    from fastformers.learner import calibration # `tune_thresholds`
    train,dev = (read(o).rename(columns={'labels':'label'}) for o in data_files('goemotions/train.csv.gz', 'goemotions/dev.csv'))
    df,_ = split(train, 3000, 1000)
    learn = trained(df, seed, **config)
    known = set(learn.dls.vocab)
    rest = dev.sample(1000, random_state=0)
    rest = rest[[set(o.split(';'))<=known for o in rest.label]]
    dl = learn.dls.test_dl(rest, with_labels=True)
    with learn.no_bar(): p,y = learn.get_preds(dl=dl)
    def found(): return task_of(learn.dls).targets_and_classes(p, y)[1].numpy()
    def f1(found, rows=slice(None), average='micro'): return f1_score(y.numpy()[rows], found[rows], average=average, zero_division=0)
    fixed = found()
    thresholds = learn.tune_thresholds()
    chosen = found()
    return dict(seed=seed, rows=len(rest), labels=len(known), thresholds=thresholds.round(3).to_dict(), labels_a_row={'true':float(y.sum(1).mean()), '0.5':float(fixed.sum(1).mean()), 'chosen':float(chosen.sum(1).mean())},
        **{f'{o} F1':{'0.5':f1(fixed, average=o), 'chosen':f1(chosen, average=o), 'interval of the gain':draws(len(rest), lambda r: f1(chosen, r, o)-f1(fixed, r, o))} for o in ('micro','macro')})

def main():
    p = parser(__doc__.split('\n')[0])
    args = p.parse_args()
    seeds = [int(o) for o in args.seeds.split(',')]
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    figures = {'GoEmotions':[goemotions(o) for o in seeds]}
    news = [agnews(o, args.final) for o in seeds]
    figures |= {'test':{'AG News':news}} if args.final else {'AG News':news}
    print(json.dumps(figures, indent=1, default=float))
    save('decisions', args, config|dict(seeds=seeds), json.loads(json.dumps(figures, default=float)), args.final)

if __name__=='__main__': main()
