"""Shares of classes in texts, corrected by labelled rows: do 95 % intervals cover the truth, and how much narrower are they than those of the labelled rows alone?

    FASTFORMERS_DATA=... python benchmarks/shares.py run     # trains each classifier once, then 200 corpora for each number of labelled rows
    python benchmarks/shares.py table                        # what the rows say

A classifier is trained as typed on rows of CLINC150, of ten domains or of all 150 intents. The other rows of the training and development files are the pool. Each corpus is 3,000 rows of it; weights of the classes, drawn from a flat Dirichlet distribution, shift its shares. The labelled rows are drawn at random from the corpus, and the truth is its own shares. Test rows are not read.
A row sums up the 200 corpora of one classifier and one number of labelled rows. Scores of the pool are kept in `--out`; finished rows are in results/shares/rows.jsonl, and a second call goes on."""
import torch
from classify import Rows as Table
from common import *
from compare import clinc
from fastformers.inference.answers import BasePredictor

sets = {'ten domains, 300 rows':('domain', 300), '150 intents, 600 rows':('intent', 600)} # column of the labels, rows of training
audits = 20,50,100,200 # labelled rows

class Stored(BasePredictor):
    "A predictor whose texts are row numbers of stored scores"
    pairs = False
    def __init__(self, task, scores): self.task,self.stored = task,scores
    def scores(self, texts, bs=64): return self.stored[[int(o) for o in texts]]

def scored(name, work):
    "The stored predictor of the pool, and its labels; trained now if it is not there"
    from fastformers.learner.save import as_predictor
    from fastformers.tasks.core import Task
    from fastformers.ulmfit.stage import fine_tune_classifier
    label,n = sets[name]
    train,dev,_ = (o.rename(columns={'label':'domain'}).assign(label=lambda o: o[label]) for o in clinc())
    train = train.sample(frac=1, random_state=1).reset_index(drop=True)
    pool,file = pd.concat([train[n:], dev], ignore_index=True),work/f'{label}.pt'
    if not file.exists():
        start = time.process_time()
        p = as_predictor(fine_tune_classifier(train[:n][['text','label']], 'minilm').learner)
        task,scores = p.task,torch.cat([p.scores(o.tolist()) for _,o in pool.text.groupby(np.arange(len(pool))//2000)])
        work.mkdir(parents=True, exist_ok=True)
        torch.save(dict(task=task.to_dict(), scores=scores, cpu_seconds=round(time.process_time()-start)), file)
    o = torch.load(file)
    res = Stored(Task.from_dict(o['task']), o['scores'])
    at = pd.Series({k:i for i,k in enumerate(res.labels)}).reindex(pool.label).fillna(-1).to_numpy(int)
    known = np.flatnonzero(at>=0) # a class without a training row has no share
    return res, pd.DataFrame(dict(text=known.astype(str), label=pool.label[known].values))

def corpus(pool, labels, seed, n=3000):
    "Draw `n` rows whose shares are shifted, none twice"
    rng = np.random.default_rng(seed)
    weight = dict(zip(labels, rng.dirichlet(np.ones(len(labels)))))
    keys = np.log(pool.label.map(weight).to_numpy()+1e-300)+rng.gumbel(size=len(pool)) # Efraimidis and Spirakis 2006
    return pool.iloc[np.argsort(-keys)[:n]]

def measure(p, pool, n, seed):
    texts = corpus(pool, p.labels, seed)
    t = p.shares(texts.text, audit=texts.sample(n, random_state=seed))
    truth = texts.label.value_counts(normalize=True).reindex(t.index).fillna(0)
    def inside(low, high): return int(((low<=truth)&(truth<=high)).sum())
    rare = truth<.02
    return dict(classes=len(t), covered=inside(t['from'], t['to']), audit_covered=inside(t.audit_from, t.audit_to),
                rare=int(rare.sum()), rare_covered=int(((t['from']<=truth)&(truth<=t['to']))[rare].sum()),
                width=(t['to']-t['from']).mean(), audit_width=(t.audit_to-t.audit_from).mean(), narrowest=(t['to']-t['from']).min(),
                naive_error=(t.naive-truth).abs().mean(), error=(t.corrected-truth).abs().mean(), audit_error=(t.audit-truth).abs().mean())

def run(args):
    quiet()
    rows = Table(results/'shares', **circumstances(args)['versions'])
    for name in args.sets.split(';') if args.sets else sets:
        p,pool = scored(name, Path(args.out or here.parent/'runs'/'shares'))
        right = p.stored[pool.text.astype(int)].argmax(1)==torch.tensor(pool.label.map(p.labels.index).values)
        for n in audits:
            def make():
                o = pd.DataFrame([measure(p, pool, n, seed) for seed in range(args.corpora)])
                counts = o[['classes','covered','audit_covered','rare','rare_covered']].sum().astype(int).to_dict()
                means = o[['width','audit_width','naive_error','error','audit_error']].mean().round(5).to_dict()
                return counts | means | dict(narrowest=o.narrowest.min(), accuracy=round(float(right.float().mean()), 4), commit=commit, processor=processor())
            rows.get(make, 'width', set=name, audit=n, corpora=args.corpora)

def table(args):
    rows = pd.DataFrame(json.loads(l) for l in (results/'shares'/'rows.jsonl').read_text().splitlines())
    print('| classifier | labelled rows | corpora | covered % | by the labelled rows alone | classes below 2 % | width | of the labelled rows\' own | mean error, points: naive | corrected | labelled rows alone |\n|'+'---|'*11)
    for o in rows.itertuples():
        def share(k, of): return f'{100*k/max(of, 1):.1f}'
        print(f'| {o.set}, {100*o.accuracy:.1f} % right | {o.audit} | {o.corpora} | {share(o.covered, o.classes)} | {share(o.audit_covered, o.classes)} | {share(o.rare_covered, o.rare)} | '
              f'{o.width:.3f} | {o.width/o.audit_width:.2f} | {100*o.naive_error:.2f} | {100*o.error:.2f} | {100*o.audit_error:.2f} |')

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('run','table'))
    p.add_argument('--sets', default='', help='with ; between them')
    p.add_argument('--corpora', type=int, default=200)
    args = p.parse_args()
    run(args) if args.do=='run' else table(args)
