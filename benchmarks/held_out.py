"""Is a held-out score that of new rows? Held-out accuracy minus that of 2,000 fresh rows, for each way to hold rows out

    FASTFORMERS_DATA=... python benchmarks/held_out.py encode            # frozen vectors of MiniLM, once, into --work
    FASTFORMERS_DATA=... python benchmarks/held_out.py run --minutes 4   # draws of labelled rows; a second call goes on
    python benchmarks/held_out.py table                                  # what the rows say

A draw is 400 rows as they come of CLINC150's 150 intents, of 77 of them (drawn once with seed 0 of numpy's `default_rng`) and of TREC's 50 fine labels, or five rows of each of the 77. Its 2,000 fresh rows are others of the same training file; test files are not read. The classifier is a ridge classifier on the vectors (penalty 0.3, not tuned; logistic regression, that of the probe, takes too long for so many fits), trained without the held-out rows and scored on them and on the fresh ones. `--exact` takes the probe's.
Ways: `split` is `split_rows`, a fifth; `probe` the five folds of `cross_validate_probe`; `compare` the three of `leaderboard` with three seeds; `quotas` a fifth of each class, as it was before; `chance` a fifth whatever the class. Finished draws are in results/held_out/rows.jsonl, in points."""
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from classify import Rows as Table
from common import *

def files(args):
    for name,labels in (('clinc150/train.csv.gz',['intent']), ('trec/train.csv',['fine_label'])):
        yield name.split('/')[0], read(data_files(name)[0]).drop_duplicates('text').reset_index(drop=True)

def encode(args):
    from fastformers.inference.predictor import from_hf
    model = from_hf('minilm')
    for name,df in files(args): np.save(args.work/f'{name}.npy', model.vectors(df.text.tolist()).numpy())

def draws(args): # name -> (labelled and other rows, their vectors, rows of a draw; 5: of each class)
    own = {k:(df, np.load(args.work/f'{k}.npy')) for k,df in files(args)}
    (clinc,x),(trec,z) = own['clinc150'],own['trec']
    some = np.random.default_rng(0).choice(sorted(clinc.intent.unique()), 77, replace=False)
    some = clinc.intent.isin(some).to_numpy()
    clinc,trec = clinc.assign(label=clinc.intent),trec.assign(label=trec.fine_label)
    few = clinc[some].reset_index(drop=True)
    return {'150 intents':(clinc, x, 400), '77 intents':(few, x[some], 400), '77 intents, five each':(few, x[some], 5), 'TREC, 50 labels':(trec, z, 400)}

def draw(df, n, seed):
    order = np.random.default_rng(seed).permutation(len(df))
    nth = df.label.iloc[order].groupby(df.label.iloc[order]).cumcount().to_numpy()
    first = np.arange(len(df))<n if n>5 else nth<n
    return order[first], order[~first][:2000]

def ways(df):
    "Each way to hold out rows of `df`: a list of (training rows, held-out rows)"
    from fastformers.compare.entries import folds
    from fastformers.data.labels import _draw, deal, row_keys, split_rows
    from fastformers.data.rows import Rows
    names,at = [[o] for o in df.label],row_keys(df, 'text')
    def parts(part): return [(np.flatnonzero(part!=i), np.flatnonzero(part==i)) for i in np.unique(part)]
    def fifth(v): return [(np.flatnonzero(~v), np.flatnonzero(v))]
    yield 'split', [tuple(map(np.array, split_rows(df, names=names)))]
    yield 'probe', parts(deal(at, names, 5))
    yield 'compare', folds(Rows(df, task='single'), (1,2,3))[1]
    yield 'quotas', fifth(_draw(at, names, .2))
    yield 'chance', fifth(_draw(at, [[None]]*len(df), .2))

def gap(x, y, fresh, y_fresh, parts, exact):
    held,new = [],[]
    for train,at in parts:
        model = (LogisticRegression(C=30, max_iter=1000) if exact else RidgeClassifier(.3)).fit(x[train], y[train])
        held += (model.predict(x[at])==y[at]).tolist()
        new.append((model.predict(fresh)==y_fresh).mean())
    return np.mean(held), np.mean(new)

def run(args, rows):
    start,sets = time.time(),draws(args)
    for first in range(0, args.draws, 10):
        for name,(df,x,n) in sets.items():
            if time.time()-start>60*args.minutes: return
            rows.get(lambda: ten(df, x, n, first, args.exact), 'split', set=name, first=first)

def ten(df, x, n, first, exact):
    "Score ten draws, the first with seed `first`"
    from fastformers.inference.stage_json import versions
    y,res,began = df.label.to_numpy(),{},time.process_time()
    for seed in range(first, first+10):
        a,b = draw(df, n, seed)
        for k,parts in ways(df.iloc[a][['text','label']].reset_index(drop=True)):
            got = res.setdefault(k, dict(held=[], fresh=[]))
            for o,v in zip(got.values(), gap(x[a], y[a], x[b], y[b], parts, exact)): o.append(round(100*float(v), 2))
    return {**res, 'commit':commit, 'processor':processor(), 'versions':versions(), 'seconds':round(time.process_time()-began, 1)}

def table(args, rows):
    d = pd.DataFrame(rows.all)
    def says(part):
        def one(k): return np.concatenate([np.subtract(o['held'], o['fresh']) for o in part[k]])
        gaps = {k:one(k) for k in ('split','probe','compare','quotas','chance')}
        return pd.Series({k:f'{o.mean():+.1f} ({o.std(ddof=1)/len(o)**.5:.1f})' for k,o in gaps.items()} | {'draws':len(gaps['split'])})
    print(f"held-out minus fresh accuracy in points (standard error)\n{pd.DataFrame({k:says(o) for k,o in d.groupby(['set','classifier'], sort=False)}).T.to_string()}")
    print(f"{d.seconds.sum()/60:.1f} core minutes; commit {', '.join(d.commit.unique())}; {', '.join(d.processor.unique())}; {d.versions[0]}")

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['encode','run','table'])
    p.add_argument('--work', type=Path, default=Path('runs/held_out'))
    p.add_argument('--exact', action='store_true')
    p.add_argument('--draws', type=int, default=200)
    p.add_argument('--minutes', type=float, default=4)
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.part=='encode': encode(args)
    else:
        how = {} if args.part=='table' else dict(classifier='logistic regression' if args.exact else 'ridge')
        globals()[args.part](args, Table(results/'held_out', arch='minilm', **how))
