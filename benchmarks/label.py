"""Labels that were chosen against labels that were drawn, in simulated sessions: the data's own labels stand for the person

    FASTFORMERS_DATA=... python benchmarks/label.py run --draws 1,2,3            # development rows
    FASTFORMERS_DATA=... python benchmarks/label.py run --draws 1,2,3 --final    # test rows, once
    FASTFORMERS_DATA=... python benchmarks/label.py audit                        # coverage of the audit rows' interval, error of the forecast
    FASTFORMERS_DATA=... python benchmarks/label.py step                         # CPU seconds of a step with 10,000 texts
    python benchmarks/label.py table [--final]                                   # what the rows say, and the picture of development rows

The pool is 10,000 training texts at most, drawn for each draw; in a `skewed` pool the share of the class of rank r is 1/r, in a random order of the classes. The session asks `choose_texts` for 25 texts at a time (50 of the 150 intents). `drawn` labels the same number of texts at random. `names`: what the classes are called is given to the session and to the classifier.
`vectors and words` is the session's own model: linear, on the encoder's vectors and vectors of words counted in the pool, with 3,000 of its texts. Stored rows of `frozen probe`, without the words, are of before 29 November, when the session had none. `as typed` is `fine_tune_classifier`, which in the end trains on all rows (`refit`), `with the pool` the same with 5,000 texts of the pool as `unlabelled`, as the page of `fastformers label` trains. `as typed, 150 steps` are of before more than 100 classes had 300 steps. Arms that end in `a text for each name first`, `of eight times as many`, `three labels a class` or `an older rule` are of rules before 1 December's last. Rows of the way `training rows` answer by the network before that last training: until 29 November they were taken for `as typed`. Finished rows are in results/label/rows.jsonl, and a second call goes on."""
import tempfile
from types import SimpleNamespace
from classify import Rows as Table
from common import *
from compare import clinc, sets
from classes import intents

data = {'domains':(300, 25, clinc), 'domains, skewed':(200, 25, clinc), 'intents':(600, 50, intents), 'intents, skewed':(200, 50, intents),
        'trec':(500, 25, sets['trec'][1]), 'agnews':(300, 25, sets['agnews'][1]), 'sst2':(300, 25, sets['sst2'][1])}
milestones = 100,200,300,400,500,600,800,1200

def pool_of(train, seed, skewed, n=10_000):
    rng = np.random.default_rng(seed)
    if skewed:
        share = dict(zip(rng.permutation(sorted(train.label.unique())), 1/np.arange(1, train.label.nunique()+1)))
        weight = train.label.map(share)/train.groupby('label').label.transform('size')
        n = min(n, int((train.groupby('label').size()/pd.Series(share)).min()*sum(share.values()))) # as many as there are of the largest class
        return train.sample(n, weights=weight, random_state=seed).reset_index(drop=True)
    return train.sample(min(n, len(train)), random_state=seed).reset_index(drop=True)

def session(pool, n, batch, seed, names=None, arch='minilm'):
    "Label `n` texts of `pool` as somebody would who follows `choose_texts`"
    from fastformers.label.choose_texts import choose_texts
    rows = None
    while rows is None or len(rows)<n:
        new = choose_texts(pool[['text']], min(batch, n-(0 if rows is None else len(rows))), rows, arch=arch, names=names, seed=seed)
        rows = pd.concat([rows, new.assign(label=pool.label.values[new['index']])], ignore_index=True)
    return rows

def small_text(pool, n, batch, seed, arm, arch='minilm'):
    "Label `n` texts of `pool` as small-text chooses them on the same vectors, the first batch at random"
    from small_text import BreakingTies, EmbeddingKMeans
    from fastformers.inference.names import fit_vectors
    from fastformers.label.vectors import TextVectors
    x,y = TextVectors(arch, pool.text.tolist())(pool.text.tolist()).astype(np.float32),pool.label.to_numpy(object)
    np.random.seed(seed) # small-text draws from numpy's own
    done = np.random.permutation(len(x))[:batch]
    while len(done)<n:
        rest,k = np.setdiff1d(np.arange(len(x)), done),min(batch, n-len(done))
        if arm=='small-text, clusters': new = EmbeddingKMeans().query(None, x, rest, done, y[done], k, embeddings=x)
        else:
            model = fit_vectors(x[done], y[done].tolist())
            new = BreakingTies().query(SimpleNamespace(predict_proba=model.scores), x, rest, done, y[done], k)
        done = np.append(done, new)
    return pool.iloc[done]

def probe(rows, vectors, x, texts, names=None):
    from fastformers.inference.names import fit_vectors, read_names
    if names: names = dict(zip(names, vectors([*read_names(names).values()])))
    return fit_vectors(vectors(rows.text.tolist()), rows.label.tolist(), names, vectors(texts))(x)

def as_typed(rows, texts, names=None, unlabelled=None, arch='minilm'):
    from fastformers.ulmfit.stage import fine_tune_classifier
    from fastformers.inference.predictor import from_hf
    cols = ['text','label']+['audit']*('audit' in rows)
    with tempfile.TemporaryDirectory() as tmp:
        fine_tune_classifier(rows[cols], arch, f'{tmp}/classifier', refit=True, names=names, unlabelled=unlabelled, keep=0)
        return [o['label'] for o in from_hf(f'{tmp}/classifier')(texts)]

def run(args):
    from fastformers.label.vectors import TextVectors
    table = Table(results/'label', part='test' if args.final else 'development', **circumstances(args)['versions'])
    for seed in map(int, args.draws.split(',')):
        for name in (args.sets.split(';') if args.sets else data):
            name,_,fewer = name.partition(':')
            n,batch,read_parts = data[name]
            n = int(fewer or n)
            train,dev,test = read_parts()
            test = test.sample(min(len(test), 2000), random_state=0) if args.final else dev.sample(min(len(dev), 1000), random_state=0)
            pool = pool_of(train, seed, 'skewed' in name)
            vectors = TextVectors(args.arch, pool.text.tolist())
            names,made,x = sorted(pool.label.unique()),{},vectors(test.text.tolist())
            def rows(how, n):
                if how.startswith('drawn'): return pool.sample(n, random_state=seed)
                if how not in made:
                    most = max(n, int(fewer or data[name][0]))
                    made[how] = small_text(pool, most, batch, seed, how, args.arch) if how.startswith('small-text') else session(pool, most, batch, seed, names if 'names' in how else None, args.arch)
                return made[how][:n]
            for way in args.ways.split(';'):
                for how in args.arms.split(';'):
                    given = names if 'names' in how else None
                    for k in [o for o in milestones if o<n]*(way=='vectors and words')+[n]+[2*n]*(how=='drawn' and name=='intents' and not fewer and way!='with the pool'):
                        if k<n and args.full_only: continue
                        def make():
                            start,some = time.process_time(),rows(how, k)
                            found = probe(some, vectors, x, pool.text[:3000].tolist(), given) if way=='vectors and words' else \
                                as_typed(some, test.text.tolist(), given, pool.text[:5000].tolist() if way=='with the pool' else None, args.arch)
                            return dict(accuracy=round(float(np.mean([str(a)==str(b) for a,b in zip(found, test.label)])), 4), rows=len(test),
                                        classes=int(some.label.nunique()), cpu_seconds=round(time.process_time()-start), commit=commit, processor=processor())
                        table.get(make, 'accuracy', what='run', set=name, way=way, arm=how, labels=k, draw=seed, arch=None if args.arch=='minilm' else Path(args.arch).name)

def simulated(x, y, n, batch, rng):
    "A session on vectors and labels: positions in the order of labelling, is each a random row, and the quarter of the pool that these come from"
    from fastformers.label.choose_texts import choose_rows
    order,at,audit = rng.permutation(len(x)),[],[]
    reserve,rest = order[:len(x)//4],order[len(x)//4:]
    while len(at)<n:
        free = rest[~np.isin(rest, at)]
        chosen = np.array(at, int)[~np.array(audit, bool)]
        k,a = min(batch, n-len(at)),(len(at)+min(batch, n-len(at)))//4-len(at)//4
        new = [*reserve[sum(audit):sum(audit)+a], *free[[*choose_rows(x[free], y[chosen].tolist(), x[chosen], {}, k-a)]]]
        mix = rng.permutation(len(new))
        audit += (mix<a).tolist()
        at += [new[i] for i in mix]
    return np.array(at), np.array(audit), reserve

def audit(args, n=200, more=100, sessions=25):
    "Does the interval of the random rows hold the accuracy on other random texts, and how far is the forecast from what 100 more labels brought?"
    from fastformers.label.forecast import forecast, last_gain, random_right, score_interval
    from fastformers.inference.names import fit_vectors
    from fastformers.label.vectors import TextVectors
    table = Table(results/'label', part='development', **circumstances(args)['versions'])
    for part in range(args.parts):
        for name in (args.sets.split(';') if args.sets else ('domains','trec','agnews','sst2','domains, skewed')):
            def make():
                found = []
                for seed in range(part*sessions, (part+1)*sessions):
                    pool = pool_of(data[name][2]()[0], seed, 'skewed' in name, 4000)
                    x,y = TextVectors()(pool.text.tolist()).astype(np.float32),pool.label.to_numpy(object)
                    at,is_audit,reserve = simulated(x, y, n+more, 25, np.random.default_rng(seed))
                    rest = np.setdiff1d(reserve, at) # what is left of the others is easier, since hard texts were chosen
                    half,now,then = (fit_vectors(x[at[:k]], y[at[:k]].tolist()) for k in (n//2, n, n+more))
                    true = [(o(x[rest])==y[rest]).mean() for o in (now, then)]
                    right = random_right(x[at[:n]], y[at[:n]].tolist(), is_audit[:n])
                    low,high = score_interval(right)
                    gain,a,b = forecast(1-right.mean(), last_gain(half, now, x[np.setdiff1d(np.arange(len(x)), at[:n])][:3000]), n, more)
                    found.append((low<=true[0]<=high, right.mean()-true[0], gain-(true[1]-true[0]), a<=true[1]-true[0]<=b))
                held,bias,error,inside = map(np.array, zip(*found))
                return dict(covered=int(held.sum()), sessions=sessions, bias=round(float(bias.mean()), 4), within=int((abs(error)<=.02).sum()), forecast_bias=round(float(error.mean()), 4),
                            inside=int(inside.sum()), commit=commit, processor=processor())
            table.get(make, 'covered', what='audit', set=name, labels=n, draw=part)

def step(args):
    "CPU seconds of a step of a session with 10,000 texts, whose vectors are there"
    from fastformers.label.choose_texts import choose_texts
    from fastformers.label.forecast import standing
    from fastformers.label.vectors import TextVectors
    table = Table(results/'label', part='development', **circumstances(args)['versions'])
    pool = pool_of(clinc()[0], 1, False)
    start = time.process_time()
    TextVectors()(pool.text.tolist())
    print(f'vectors of {len(pool):,} texts: {time.process_time()-start:.0f} CPU s (0 if they were there)')
    for n in (25,100,300):
        rows = pool.sample(n, random_state=1).assign(audit=np.arange(n)%4==0)
        def make():
            spent = []
            for _ in range(3):
                start = time.process_time()
                choose_texts(pool.text, 25, rows)
                standing(rows, texts=pool.text)
                spent.append(time.process_time()-start)
            return dict(cpu_seconds=round(float(np.median(spent)), 2), commit=commit, processor=processor())
        table.get(make, 'cpu_seconds', what='step', set='domains', labels=n)

def picture(rows):
    "Draw accuracy by number of labels, chosen and drawn, with the range of the draws"
    import matplotlib.pyplot as plt
    titles = {'domains':'10 domains', 'domains, skewed':'10 domains, skewed', 'intents':'150 intents', 'trec':'TREC-6', 'agnews':'AG News', 'sst2':'SST-2'}
    rows = rows[(rows.what=='run') & (rows.way=='vectors and words')]
    fig,axs = plt.subplots(2, 3, figsize=(10,5.6), layout='constrained')
    for ax,(name,title) in zip(axs.flat, titles.items()):
        mean = {}
        for arm,color in (('drawn','#64748b'),('chosen','#15803d')):
            o = rows[(rows.set==name) & (rows.arm==arm) & (rows.labels<=data[name][0])].groupby('labels').accuracy.agg(['mean','min','max'])
            ax.fill_between(o.index, o['min'], o['max'], color=color, alpha=.15, lw=0)
            ax.plot(o.index, o['mean'], color=color, marker='.', label=arm)
            mean[arm] = o['mean']
        n,level = mean['drawn'].idxmax(),mean['drawn'].max()
        k = np.interp(level, np.maximum.accumulate(mean['chosen']), mean['chosen'].index)
        ax.annotate('', (k, level), (n, level), arrowprops=dict(arrowstyle='->', color='#b45309'))
        title = f"{title}: {'over '*bool(mean['chosen'].iloc[0]>=level)}{n/k:.1f} times fewer labels"
        ax.set_title(title, fontsize=10)
        ax.set(xlabel='labels', ylabel='accuracy')
    axs.flat[0].legend(loc='lower right', frameon=False)
    fig.savefig(results.parent.parent/'nbs/images/chosen_labels.png', dpi=80)

def table(args):
    rows = pd.DataFrame(json.loads(l) for l in (results/'label'/'rows.jsonl').read_text().splitlines())
    rows = rows[(rows.part==('test' if args.final else 'development')) & rows.arch.isna()] # `page.py` shows other encoders
    if not args.final: picture(rows)
    print('| set | labels | way | draws | drawn | chosen | chosen, with names | chosen - drawn |\n|---|---|---|---|---|---|---|---|')
    for (name,n,way),o in rows[rows.what=='run'].groupby(['set','labels','way'], sort=False):
        p = o.pivot_table(index='draw', columns='arm', values='accuracy')
        both = (p.chosen-p.drawn).dropna()*100 if {'chosen','drawn'}<={*p} else []
        def mean(c): return f'{p[c].mean():.3f}' if c in p else ''
        print(f"| {name} | {n:g} | {way} | {len(p)} | {mean('drawn')} | {mean('chosen')} | {mean('chosen, names')} | "
              f"{f'{both.mean():+.1f} ({both.min():+.1f} to {both.max():+.1f})' if len(both) else ''} |")

    print('\n| set | sessions | interval holds the truth | score - truth, points | forecast within 2 points | its mean error, points | its interval holds the gain |\n|---|---|---|---|---|---|---|')
    for name,o in [*rows[rows.what=='audit'].groupby('set', sort=False), *[('all', rows[rows.what=='audit'])]*('audit' in rows.what.values)]:
        n = o.sessions.sum()
        print(f'| {name} | {n:.0f} | {o.covered.sum()/n:.1%} | {100*o.bias.mean():+.1f} | {o.within.sum()/n:.0%} | {100*o.forecast_bias.mean():+.1f} | {o.inside.sum()/n:.0%} |')
    for _,o in rows[rows.what=='step'].iterrows(): print(f'\nA step after {o.labels:g} labels: {o.cpu_seconds} CPU s')

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('run','audit','step','table'))
    p.add_argument('--draws', default='1')
    p.add_argument('--sets', default='', help='with ; between them, each with the number of labels after a colon')
    p.add_argument('--arms', default='drawn;chosen;chosen, names', help='with ; between them')
    p.add_argument('--ways', default='vectors and words;as typed', help='with ; between them')
    p.add_argument('--arch', default='minilm', help='the encoder that chooses and that learns')
    p.add_argument('--parts', type=int, default=8, help='of `audit`, 25 sessions a set each')
    p.add_argument('--full-only', action='store_true', help='only the largest number of labels')
    args = p.parse_args()
    if args.do!='table':
        quiet()
        logging.disable(logging.INFO)
    dict(run=run, audit=audit, step=step, table=table)[args.do](args)
