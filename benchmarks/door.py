"""The learner's door as typed: `classifier_learner(classifier_dls(df, 'minilm'), 'minilm')` and fastai's verbs, beside the frozen probe and `fine_tune_classifier`

    FASTFORMERS_DATA=... python benchmarks/door.py run --draws 1,2            # development rows
    FASTFORMERS_DATA=... python benchmarks/door.py run --draws 1,2,3 --final  # test rows, once
    python benchmarks/door.py table [--final]                                 # what the rows say

A fifth of the labelled rows is held out by each arm and takes no part in training. The two recipes of fastai's tutorials find their rates: `steps` before it freezes, `steps, frozen` before each step.
Finished rows are in results/door/rows.jsonl, and a second call goes on."""
import sys
from classify import Rows as Table
from common import *
from compare import draw, sets

def learner(df, **kwargs):
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(42)
    return classifier_learner(classifier_dls(df, 'minilm'), 'minilm', **kwargs)

def frozen_probe(df): return learner(df).fit_probe()

def one_cycle(df):
    learn = learner(df)
    learn.fit_one_cycle(5)
    return learn

def found(learn): return learn.lr_find(show_plot=False).valley

def steps(df, each=False):
    learn = learner(df)
    lr = None if each else found(learn)
    def rate(): return lr or found(learn)
    learn.freeze()
    learn.fit_one_cycle(1, rate())
    learn.freeze_to(-2)
    o = rate()
    learn.fit_one_cycle(1, slice(o/2.6**4, o))
    learn.unfreeze()
    o = rate()
    learn.fit_one_cycle(2, slice(o/2.6**4, o))
    return learn

def steps_frozen(df): return steps(df, each=True)

def fine_tune(df):
    learn = learner(df)
    learn.fine_tune(7, found(learn))
    return learn

def fit_plan(df): return learner(df).fit_plan()

def stage(df):
    from fastformers.ulmfit.stage import fine_tune_classifier
    return fine_tune_classifier(df, 'minilm').learner

arms = {'frozen probe':frozen_probe, 'fit_one_cycle(5)':one_cycle, 'steps':steps, 'steps, frozen':steps_frozen, 'lr_find, fine_tune(7)':fine_tune,
        'fit_plan()':fit_plan, 'fine_tune_classifier':stage}

def score(learn, test):
    import torch
    from fastformers.learner.save import as_predictor
    task,scores = learn.model.task,as_predictor(learn).scores(test.text.tolist())
    return float(np.mean([task.labels[int(i)]==l for i,l in zip(torch.as_tensor(scores).argmax(1), test.label)]))

def run(args):
    quiet()
    logging.disable(logging.INFO)
    table = Table(results/'door', part='test' if args.final else 'development', **circumstances(args)['versions'])
    for seed in map(int, args.draws.split(',')):
        for name in args.sets.split(','):
            (n,*_),read_parts = sets[name]
            train,dev,test = read_parts()
            test = test if args.final else dev.sample(min(len(dev), 800), random_state=0)
            rows = draw(train, n, seed)[['text','label']]
            for k in args.arms.split(';') if args.arms else arms:
                def make():
                    start = time.process_time()
                    learn = arms[k](rows)
                    return dict(accuracy=score(learn, test), cpu_seconds=round(time.process_time()-start), rows=len(test), commit=commit, processor=processor())
                table.get(make, 'accuracy', set=name, arm=k, draw=seed)

def table(args):
    from scipy.stats import t
    rows = pd.DataFrame(json.loads(l) for l in (results/'door'/'rows.jsonl').read_text().splitlines())
    rows = rows[rows.part==('test' if args.final else 'development')]
    print('| set | arm | draws | accuracy | minus frozen probe | CPU s |\n|---|---|---|---|---|---|')
    for (name,k),o in rows.groupby(['set','arm'], sort=False):
        base = rows[(rows.set==name)&(rows.arm=='frozen probe')].set_index('draw').accuracy
        d = (o.set_index('draw').accuracy-base).dropna()
        wide = t.ppf(.975, len(d)-1)*d.std()/len(d)**.5 if len(d)>1 else np.nan
        print(f'| {name} | {k} | {len(o)} | {o.accuracy.mean():.3f} | {d.mean():+.3f} ± {wide:.3f} | {o.cpu_seconds.mean():.0f} |')

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('run','table'))
    p.add_argument('--draws', default='1,2')
    p.add_argument('--sets', default='clinc150,trec,sst2')
    p.add_argument('--arms', default='', help='with ; between them')
    args = p.parse_args()
    run(args) if args.do=='run' else table(args)
