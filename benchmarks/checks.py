"""Does training with changed texts make a classifier steadier? Failure rates of `checks`, and accuracy

    FASTFORMERS_DATA=... python benchmarks/checks.py run --seeds 1,2     # finished rows are kept
    python benchmarks/checks.py table

A network, trained as typed on 300 utterances with ten domains, or 500 rows of SST-2. `copies`: `augment`, a copy of each training row with a typo, and one with another name where it has one.
`consistency`: `Consistency` with the same changes of 2,000 other training texts, and of all that have a name. Development rows score: the checks 400 of them and those with a name, the accuracy 1,000.
No test set is read. The rows are in results/checks/rows.jsonl."""
import torch
from classify import Rows
from common import *
from compare import draw, sets

arms,changes = ('plain','copies','consistency'),['typo','other first name']

def utterances():
    from fastformers.text.corpora import intents
    df = intents()[['text','label','split']]
    return df[df.split=='train'], df[df.split=='valid']

def named(df):
    from fastformers.interpret.checks import other_first_name
    return df[[bool(other_first_name(o)) for o in df.text]]

def fit(arm, df, more, seed, arch):
    "Train a classifier on the labelled rows `df`, with `more` texts without labels for `consistency`"
    from fastformers.data.rows import Rows as DataRows
    from fastformers.interpret.checks import augment
    from fastformers.learner.save import as_predictor
    from fastformers.papers.uda import Consistency
    from fastformers.ulmfit.stage import fine_tune_classifier
    df = DataRows(df).hold_out().frame
    if arm=='copies': df = augment(df, which=changes)
    cbs = Consistency(more, which=changes, anneal=False) if arm=='consistency' else None
    return as_predictor(fine_tune_classifier(df, arch, seed=seed, cbs=cbs).learner)

def one(arm, train, dev, n, seed, arch):
    "Train, and count the answers that are right and those that changed texts turn"
    from fastformers.interpret.checks import checks
    df = draw(train[['text','label']], n, seed)
    rest = train[~train.text.isin(df.text)]
    more = pd.concat([rest.sample(2000, random_state=0), named(rest)]).text.drop_duplicates().tolist()
    start = time.process_time()
    predictor = fit(arm, df, more, seed, arch)
    cpu = round(time.process_time()-start)
    at,some = dev.sample(1000, random_state=0),named(dev)
    asked = pd.concat([some, dev.drop(some.index).sample(400, random_state=0)])
    found = checks(predictor, asked, which=changes, most=len(asked)).drop(columns='examples').set_index('check').round(4)
    right = [o['label']==label for o,label in zip(predictor(at.text.tolist()), at.label)]
    return {'accuracy':float(np.mean(right)), 'hits':np.packbits(right).tobytes().hex(), 'checks':found.to_dict('index'),
            'cpu':cpu, 'processor':processor()}

def table(rows):
    "Pool the seeds: failure rates and accuracies with their intervals"
    from fastformers.stats import wilson
    for (name,arch,arm),g in pd.DataFrame(rows.all).groupby(['set','arch','arm'], sort=False):
        def says(k, n): return '{:.3f} ({:.3f} to {:.3f}) of {}'.format(k/n, *wilson(k, n), n)
        out = {'accuracy':says(1000*g.accuracy.sum(), 1000*len(g))}
        for c in changes:
            o = pd.DataFrame([*g.checks.str[c]])
            out[c] = says((o.failures*o.rows).sum(), int(o.rows.sum()))
        print(f'{name}, {arch}, {arm}, {len(g)} seeds, {g.cpu.mean():.0f} s:', *(f'{k} {v}' for k,v in out.items()), sep='  ')

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('verb', choices=['run','table'])
    p.add_argument('--arms', default=','.join(arms))
    p.add_argument('--arch', default='minilm')
    p.add_argument('--sets', default='domains,sst2')
    args = p.parse_args()
    rows = Rows(results/'checks')
    if args.verb=='run':
        torch.set_num_threads(1)
        quiet()
        rows.settings = {'commit':commit, 'precision':precision()}
        of = {'domains':(utterances, 300), 'sst2':(lambda: sets['sst2'][1]()[:2], 500)}
        for seed in map(int, args.seeds.split(',')):
            for name in args.sets.split(','):
                read_set,n = of[name]
                train,dev = read_set()
                for arm in args.arms.split(','):
                    rows.get(lambda: one(arm, train, dev, n, seed, args.arch), 'accuracy', set=name, arch=args.arch, arm=arm, seed=seed)
        rows.settings = {}
    table(rows)
