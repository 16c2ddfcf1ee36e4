"Figures and rows: the tables of the benchmarks' page are made from stored rows, and so is each figure of README"
import json, re, sys
from functools import cache
from pathlib import Path
import numpy as np, pytest

repo = Path(__file__).parent.parent
sys.path.insert(0, str(repo/'benchmarks'))
import page
readme = (repo/'README.md').read_text()
old = dict(compare=417, documents=11, papers=50, checks=12, sizes=16, objectives=42, heads=3, attribution=2, imdb=10, trec=40) # rows without commit, versions or processor, of before 2026-11-28

def test_the_tables_are_those_of_the_rows():
    text = (repo/'benchmarks/README.md').read_text()
    assert page.rendered(text)==text, 'run `python benchmarks/page.py`'
    assert all(f'<!-- {o} -->' in text for o in page.tables)
    with pytest.raises(KeyError, match='no table'): page.rendered('<!-- odd -->\n<!-- end -->')

def test_a_row_says_what_it_was_made_with():
    for f in (repo/'benchmarks/results').rglob('rows.jsonl'):
        lacks = [o for o in map(json.loads, f.read_text().splitlines()) if not ({'commit','processor'}<={*o} and {'versions','torch'} & {*o})]
        assert len(lacks)<=old.get(f.parent.name, 0), f'{f.parent.name}: {lacks[-1]}'

def test_a_row_made_anew_stands_beside_the_older(tmp_path):
    import compare
    from types import SimpleNamespace
    table = compare.Table(tmp_path)
    def row(score, commit, anew=False):
        key, = compare.cases(SimpleNamespace(seeds=[1], sets=['trec'], sizes=[100], final=True, anew=anew))
        return table.get(lambda: dict(accuracy=score, commit=commit), 'accuracy', arm='all layers', **key)['accuracy']
    assert row(.7, 'older')==row(.8, 'other')==.7 and row(.8, compare.commit, True)==row(.9, 'other', True)==.8
    assert [o['accuracy'] for o in table.all]==[.7,.8]

@pytest.fixture(scope='module')
def mean():
    d = page.compared()
    by = d.groupby(['set','n','arm']).points.mean()
    return lambda *key: by[key]/100

def test_figures_of_the_readme(mean):
    def two(*xs): return ', '.join(f'{x:.2f}' for x in xs)
    c,t = [('clinc150',300,a) for a in ('as typed','frozen probe','label spreading','linear, tuned')],[('trec',100,a) for a in ('as typed','frozen probe')]
    assert f'CLINC150, 300 labels: {mean(*c[0]):.2f}, frozen {mean(*c[1]):.2f}; TREC-6, 100: {two(*(mean(*o) for o in t))}' in readme
    assert f'accuracy {mean(*c[0]):.2f} on 4,500 others, tuned TF-IDF {mean(*c[3]):.2f}' in readme
    assert f'CLINC150, 300 labels: {mean(*c[0]):.2f}, then {mean(*c[2]):.2f}' in readme
    assert f"error {100*(1-mean('imdb',500,'as typed')):.1f} %, first 100 words {100*(1-mean('imdb100',500,'as typed')):.1f}" in readme
    peers = [(*k,a) for k in (('clinc150',300), ('trec',500)) for a in ('SetFit','Trainer')]
    assert 'CLINC150, 300 labels: {:.2f}, {:.2f}; TREC-6, 500: {:.2f} (one draw), {:.2f}'.format(*(mean(*o) for o in peers)) in readme
    d = page.rows('label')
    d = d[(d.what=='run') & (d.way=='as typed') & (d.part=='development')].groupby(['set','labels','arm']).accuracy.mean()
    assert f"ten domains, 300 labels: {d['domains',300,'chosen']:.2f} chosen, {d['domains',300,'drawn']:.2f} random; 150 intents, whose names the session knows, 200 labels: {two(*(d['intents',200,o+', names'] for o in ('chosen','drawn')))}; AG News and SST-2: level" in readme
    typed = {label:p for label,_,p in page.sessions('as typed')}
    assert all(level(typed[k].chosen-typed[k].drawn) for k in ('AG News','SST-2'))
    pool = page.rows('label').query("way=='with the pool' and set=='domains' and arm=='chosen, names' and part=='development'").accuracy.mean()
    assert f"chosen labels, development: {d['domains',300,'chosen']:.2f}, with names {pool:.2f}" in readme
    d = page.rows('classes')
    d = d[(d.what=='names') & (d.part=='development')].groupby(['set','arm']).accuracy.mean()
    said = '; '.join(f"{label} {two(d[k,'names alone'], d[k,'names and texts'])}" for k,label in dict(intents77='77 intents', agnews='AG News', domains='ten domains').items())
    assert said in readme
    d = page.rows('door')
    d = d[(d.set=='clinc150') & (d.part=='test')].groupby('arm').accuracy.mean()
    assert f"{d['fit_one_cycle(5)']:.2f} by `fit_one_cycle(5)`, {d['steps']:.2f} by `freeze` to `unfreeze`, {d['fit_plan()']:.2f} by `fit_plan()`" in readme
    before,after = (development[development.arm==o].groupby(['set','n']).accuracy.mean() for o in ('all layers','stage 2 + all layers'))
    a,b = (f'{before[k]:.2f}, then {after[k]:.2f}' for k in (('clinc150',300), ('trec',100)))
    assert f'300 labels, development: {a}; TREC-6, 100: {b}' in readme
    by = page.of_networks().query("arm=='all layers'").groupby(['set','n','arch']).accuracy.mean()
    small,large = ([by[k,n,o] for k,n in (('sst2',500), ('trec',500), ('clinc150',300))] for o in ('minilm','all-mpnet-base-v2'))
    says = zip(('SST-2, 500 labels','TREC-6, 500','CLINC150, 300'), small, large)
    assert '; '.join(f'{k}: {two(a, b)}' for k,a,b in says) in readme

def test_the_comparison_in_the_readme_was_run():
    o = json.loads((repo/'benchmarks/results/readme_compare.json').read_text())
    assert 'Use all layers' in o['says'][0] and {'commit','processor','versions'}<={*o}
    for e in o['entries']:
        if e['entry'] in ('all layers','frozen probe','characters'): assert f"{e['score']:.3f} ({e['low']:.3f} to {e['high']:.3f})" in readme

def test_the_figures_of_the_demo_are_those_of_a_run():
    o = json.loads((repo/'benchmarks/results/demo.json').read_text())['accuracy_on_4500_test_rows']
    a,b,c,d,e = (f"{o['classifier'+k]:.2f}" for k in (' from random weights',' from the general LM','',' from minilm',' from minilm with chosen labels'))
    assert f'test: random weights {a}, `wiki-mini` {b}, after stage 2 {c}; `minilm` {d}, with chosen labels {e}' in readme

# ---- the sentences of benchmarks/README.md: a claim returns the parts of sentences that its rows give

claims = []
def claim(f): claims.append(cache(f))

d = page.compared(None)
development = page.rows('compare').query('test==False').assign(points=lambda o: 100*o.accuracy)
cpu = d.groupby(['set','n','arm']).cpu.median()
six = [*page.sets][:6] # all but whole reviews

def gap(a, b, *key, d=d): return page.paired(d, a, b, key)
def ahead(x): return x.mean()>page.half(x)
def level(x): return abs(x.mean())<=page.half(x)
sizes = dict(clinc150=4500, intents77=2310, trec=500, sst2=872, agnews=2000, imdb=1000) # test rows
def with_rows(a, b, *key):
    "Half of the interval of `gap`, the chance of the test rows included"
    o = d[(d.set==key[0]) & (d.n==key[1])].dropna(subset='hits')
    hits = [o[o.arm==k].groupby('seed').hits.last().map(lambda h: np.unpackbits(np.frombuffer(bytes.fromhex(h), np.uint8))[:sizes[key[0]]].astype(float)) for k in (a,b)]
    draws = hits[0].index.intersection(hits[1].index)
    if len(draws)<3: return None
    both = np.stack([100*(hits[0][i]-hits[1][i]) for i in draws])
    return np.hypot(page.half(both.mean(1)), 1.96*both.mean(0).std(ddof=1)/both.shape[1]**.5)
def spread(x, digits=1): return f'{min(x):.{digits}f} to {max(x):.{digits}f}'

@claim
def protocol():
    for k,n in sizes.items(): assert {len(o)//2 for o in d[d.set==k].hits.dropna()}=={-(-n//8)}
    cells = [x for a,b in page.pairs for k in page.sets if len(x := page.paired(d, a, b, k))>2]
    rows = page.rows('compare')
    for a,b in page.pairs:
        for k in page.sets:
            x,w = gap(a, b, *k),with_rows(a, b, *k)
            if w is not None and ahead(x): assert abs(x.mean())>w
    words = gap('all layers','characters','trec',500)
    prompted = [d[(d.set=='trec') & (d.n==100) & (d.seed<4) & (d.arm==o)].points.mean() for o in ('all layers before the contrastive rule','all layers')]
    lacks = (rows.processor.isna() | rows.versions.isna()).sum()
    rates = rows[(rows.part=='rates') & (rows.arch=='minilm')].groupby('set')
    assert spread(rates.lr.nunique(), 0)=='4 to 6' # of four to six rates, on AG News the lowest
    assert rows.lr[rates.accuracy.idxmax().agnews]==rates.lr.min().agnews
    peers = dict(re.findall(r'^([\w-]+)==([\d.]+)', (repo/'benchmarks/requirements.txt').read_text(), re.M))
    return ['{:,} utterances, of which {:,} have the 77 intents, and {} questions. SST-2 has {}, AG News {:,} and IMDb {:,}'.format(*sizes.values()),
            f"±{page.half(words):.1f} on 500 questions is ±{with_rows('all layers','characters','trec',500):.1f}", f'Its {len(cells)} intervals', f'({prompted[1]-prompted[0]:+.1f} points)', f'{lacks} of {len(rows)} rows', f"SetFit {peers['setfit'][:3]}", f"small-text {peers['small-text']}"]

@claim
def minutes():
    m = page.rows('compare').query("part=='lm'").set_index('set')['lm seconds']/60
    within = d.dropna(subset='within').groupby(d.set=='imdb').within.unique()
    return [f'{m.clinc150:.0f} core minutes on utterances, {m.trec:.0f} on questions', f'`compare` had {within[False].item():.0f} minutes, for reviews {within[True].item():.0f}']

@claim
def where_the_gain_comes_from():
    words = [gap('all layers','characters',*k) for k in six]
    probe = [x for k in six if len(x := gap('all layers','frozen probe',*k))>2]
    assert all(map(ahead, words)) and len(probe)==6 and all(map(ahead, probe))
    trainer = {k:gap('all layers','Trainer',*k) for k in six}
    assert [k for k,x in trainer.items() if ahead(x)]==six[:3] and all(level(trainer[k]) for k in six[3:])
    setfit = [gap('all layers','SetFit',*k) for k in six[:3]]
    assert [*map(ahead, setfit)]==[True,True,False] and level(setfit[2]) and ahead(gap('label spreading','all layers','clinc150',300))
    assert level(gap('label spreading','all layers','intents77',5))
    versions = [d[(d.set=='clinc150') & (d.n==300) & (d.arm==o)].points.mean() for o in ('self-training','label spreading from the probe','label spreading before class means','label spreading')]
    near = page.rows('compare').query("part=='near'").set_index('set').agree
    assert not near[['trec','sst2']].any() and near[['clinc150','intents77']].all()
    for n,a,b in ((3,'as typed after masked LM','as typed'), (4,'leaderboard','all layers'), (6,'as typed','all layers')):
        known = [x for k in six if len(x := gap(a, b, *k))>2]
        assert len(known)==n and all(map(level, known))
    assert [k for k in six[:5] if ahead(gap('Trainer, three times the steps','Trainer',*k))]==[('intents77',5)]
    assert all(ahead(gap('all layers','Trainer, three times the steps',*k)) for k in six[:3])
    later = trainer['trec',100][trainer['trec',100].index>3]
    assert ahead(later)
    three = gap('all layers','Trainer, three times the steps','intents77',5).mean()
    return [f'by {spread([x.mean() for x in words])} points', f"({', '.join(f'{o:.1f}' for o in versions)})", f'lead {three:.1f} points then, not {trainer["intents77",5].mean():.1f}', f'give {page.interval(later)}']

@claim
def other_networks():
    by = page.of_networks().groupby(['arch','set','n','arm']).points.mean()
    below = [k for k in six if by['wiki-mini',*k,'all layers']<by['minilm',*k,'frozen probe']]
    assert below==[k for k in six if k[0]!='trec']
    of = page.of_networks().query("arm=='all layers'").pivot_table(index='seed', columns=['set','n','arch'], values='points')
    more = {k:(of[*k,'all-mpnet-base-v2']-of[*k,'minilm']).dropna() for k in six if (*k,'all-mpnet-base-v2') in of}
    gains = [more[k].mean() for k in six if ahead(more[k])]
    assert len(gains)==5 and level(more['trec',100]) and all(len(x)==3 for x in more.values())
    assert all(by['all-mpnet-base-v2',*k,'all layers']>by['all-mpnet-base-v2',*k,'frozen probe'] for k in six)
    return ["All layers of `wiki-mini` end below MiniLM's frozen probe, but on TREC-6",
            f'ahead of MiniLM by {spread(gains)} points on five sets and level on 100 questions']

@claim
def with_more_labels():
    sets = [(k,n) for k in ('trec','clinc150','sst2','agnews','imdb100') for n in (100,500,2000)]
    each = [gap('as typed',b,*k) for k in sets for b in ('frozen probe','TF-IDF')]
    minutes = {k:cpu[*k,'as typed']/60 for k in sets}
    short,long = ([v for k,v in minutes.items() if (k[0]=='imdb100')==o] for o in (False,True))
    assert level(gap('as typed','TF-IDF','imdb100',2000))
    return [f'in {sum(map(ahead, each))} of {len(each)} comparisons. It took {spread(short, 0)} core minutes, on beginnings of reviews {spread(long, 0)}']

@claim
def price():
    new = development[(development.set=='clinc150') & (development.arm=='all layers') & (development.precision=='fp32')].cpu.median()
    setfit = [cpu[*k,'SetFit']/cpu[*k,'all layers'] for k in six[:3]]
    reviews = [cpu['imdb',n,'as typed']/60 for n in (100,500)]
    return [f"took {new:.0f} on ten domains, not {cpu['clinc150',300,'all layers']:.0f}.", f'took {spread(reviews, 0)} minutes', f'took {spread(setfit, 0)} times']

@claim
def printed_figures():
    from fastformers.stats import wilson
    typed,chose = d[d.arm=='as typed'].dropna(subset='printed'),d[d.part=='choose']
    typed = typed[[k in page.sets for k in zip(typed.set, typed.n)]]
    for _,o in chose.groupby(['set','n']): assert len(o)<3 or level(np.array([100*s[w] for s,w in zip(o.scores, o.winner)])-o.points)
    bias = {k:np.array([100*p[0] for p in o.printed])-o.points for k,o in typed.groupby(['set','n']) if len(o)>2}
    low,high = ([k for k,x in bias.items() if ahead(i*x)] for i in (-1,1))
    assert (low,high)==([('clinc150',300),('trec',100)], [('intents77',5)])
    inside = sum(a<=t/100<=b for (_,a,b),t in zip(typed.printed, typed.points))
    audit = page.rows('label').query("what=='audit'")
    n,by = audit.sessions.sum(),audit.groupby('set')[['within','sessions']].sum()
    reviews = 100*by.within.sst2/by.sessions.sst2
    return [f'in {inside} of {len(typed)} runs, which fits any share from {100*wilson(inside, len(typed))[0]:.0f} %',
            f'In {n:,.0f} simulated runs of `fastformers label` the interval held the truth in {100*audit.covered.sum()/n:.1f} %, and the forecast was within two points in {100*audit.within.sum()/n:.0f} %, on SST-2 in {reviews:.0f} %']

@claim
def stages():
    small = page.of_networks().query("arch=='wiki-mini'")
    learnt,more = ({k:gap(*o, *k, d=small) for k in (('trec',100), ('trec',500), ('clinc150',300))} for o in (('all layers','random weights'), ('stage 2 + all layers','all layers')))
    assert [k for k,x in learnt.items() if ahead(x)]==[('trec',500)] and [k for k,x in more.items() if ahead(x)]==[('clinc150',300)] and all(level(x) or ahead(x) for o in (learnt,more) for x in o.values())
    layers = {k:gap('stage 2 + all layers','all layers',*k,d=development) for k in six[:4]}
    assert ahead(layers['clinc150',300]) and ahead(-layers['trec',100]) and level(layers['trec',500]) and level(layers['intents77',5])
    assert all((gap('frozen probe after stage 2','frozen probe',*k,d=development)>0).all() for k in six[:5])
    imdb = page.rows('stage2_rows/imdb').query("arm=='wiki' and n==100").test.dropna()
    words = d[(d.set=='imdb') & (d.n==100) & (d.arm=='TF-IDF')].points.mean()
    return [f'with 100 reviews has errors of {imdb.min():.1f} and {imdb.max():.1f}, words in other draws {100-words:.1f}']

@claim
def all_reviews():
    o = d[(d.set=='imdb100') & (d.n==24381)].set_index('arm')
    hits = [np.unpackbits(np.frombuffer(bytes.fromhex(o.hits[k]), np.uint8))[:sizes['imdb']].astype(float) for k in ('all layers','TF-IDF')]
    from fastformers.stats import paired_bootstrap
    low,high = paired_bootstrap(*hits)[1:]
    assert low<0<high
    return [f'{100*(hits[0]-hits[1]).mean():+.1f} points ({100*low:.1f} to {100*high:.1f})', f'{o.cpu["all layers"]/o.cpu["TF-IDF"]:.0f} times']

@claim
def adaptations():
    e = page.stored('trec_adapt')['test']['test error %']
    worse = {k:np.array(v['each'])-np.array(e['fine-tuning, 0.00011']['each']) for k,v in e.items() if isinstance(v, dict)}
    assert [k for k,x in worse.items() if ahead(x)]==['adapters, 0.002'] and not any(ahead(-x) for x in worse.values())
    reads = [o for o in map(json.loads, (page.results/'test_reads.jsonl').read_text().splitlines()) if 'trec_adapt' in o['command']]
    assert len(reads)==5
    return [f"a reading of {reads[0]['test error %']['fine-tuning, 6.5e-05']['mean']}"]

@claim
def ideas_one_by_one():
    o = page.rows('ablations')
    o = o[o.part=='test'].drop_duplicates(['set','arm','draw'], keep='last')
    assert o.groupby(['set','arm']).lr.nunique().eq(1).all() and o.lr.between(5e-5, 1.6e-3).all() # not at the grid's edge
    lost = []
    for _,g in o.groupby('set'):
        p = g.pivot_table(index='draw', columns='arm', values='accuracy')
        p = p.sub(p['all layers at once, one rate'], axis=0)
        assert ahead(-p['random weights']) and all(level(p[a]) for a in p.columns.drop(['random weights','all layers at once, one rate']))
        lost.append(-100*p['random weights'].mean())
    assert f"pretraining: +{min(lost):.0f} to +{max(lost):.0f} points; others level" in readme
    return []

@claim
def other_encoders():
    o = page.rows('rates').query("pool=='concat'")
    p = o.assign(lr=o.lr.astype(str)).groupby(['encoder','set','labels','draw','lr']).accuracy.mean().unstack()*100
    assert (p['0.0001']>p['frozen probe'])[p['0.0001'].notna()].all()
    other = p.sub(p['0.0001'], axis=0).drop(columns=['frozen probe','0.0001']).groupby(level=[0,1,2]).mean()
    return [f'at most {other.max().max():.1f} points ahead of it']

@claim
def verbs():
    o = page.rows('door').query("part=='test'")
    p = {k:v.pivot_table(index='draw', columns='arm', values='accuracy') for k,v in o.groupby('set')}
    assert [k for k,v in p.items() if ahead(v['fit_one_cycle(5)']-v.steps)]==['clinc150','trec'] and all(level(v['fit_plan()']-v['fit_one_cycle(5)']) for v in p.values())
    return []

@claim
def chosen_labels():
    linear,typed = ([(label,n,p) for label,n,p in page.sessions(way)] for way in ('vectors and words','as typed'))
    assert [i for i,(_,_,p) in enumerate(linear) if ahead(p.chosen-p.drawn)]==[0,1] and [i for i,(_,_,p) in enumerate(linear) if not level(p.chosen-p['small-text, margins'])]==[4]
    assert [i for i,(_,_,p) in enumerate(typed) if ahead(p.chosen-p.drawn)]==[0,2]
    few = [*page.sessions('vectors and words', few=True)]
    named = [[p['chosen, names']-p['drawn, names'] for _,_,p in o] for o in (few, linear)]
    assert [[i for i,o in enumerate(k) if ahead(o)] for k in named]==[[1,2],[0,1,3]]
    first,now = (few[2][2]['chosen, names'+o] for o in (', a text for each name first',''))
    r = page.rows('label').query("what=='run' and part=='development' and set=='intents' and labels==1200 and arm=='drawn'")
    twice = {k:o.set_index('draw').accuracy*100 for k,o in r.groupby('way')}
    more = [twice[k]-o[2][2].chosen for k,o in (('vectors and words',linear), ('as typed',typed))]
    margins = np.concatenate([p.chosen-p['small-text, margins'] for _,_,p in linear])
    pool = next(p for label,_,p in page.sessions('with the pool') if label=='ten domains')
    pool = pool['chosen, names']-pool.drawn
    assert level(pool) and all(map(level, more))
    def of(part, n, way, arm): return 100*page.rows('label').query("what=='run' and set=='intents' and part==@part and labels==@n and way==@way and arm==@arm").set_index('draw').accuracy
    a,b = (of('development', 200, 'as typed', o+', names') for o in ('chosen','drawn'))
    tested = [page.interval(of('test', 1200, 'vectors and words' if way=='vectors and words' else 'as typed', 'drawn')-of('test', 600, way, arm))
              for way,arm in (('vectors and words','chosen'), ('as typed','chosen'), ('with the pool','chosen, names'))]
    return [f'have {a.mean():.1f}, drawn ones {b.mean():.1f} ({page.interval(a-b)})', '600 chosen ones: {} (linear), {} (as typed), {} (as the page trains)'.format(*tested), f'came first: {first.mean():.1f} with 200 labels of 150 intents, {page.interval(now-first)} today', f'behind by {page.interval(-margins)[1:]} over all {len(margins)} pairs']

@claim
def foreign_texts():
    o = page.rows('classes')
    u = o[(o.what=='unknown') & (o.part=='test')]
    widest = max(100*(g[c].max()-g[c].min()) for _,g in u.groupby(['set','arm']) for c in ('caught','caught_at_05','false_alarms'))
    assert (u[u.set=='trec'].sort_values('auroc').groupby('draw').arm.last()=='highest probability').all()
    few = o[(o.what=='price')].iloc[0]
    return [f'differ by up to {widest:.0f} points', f'{100*u.false_alarms.min():.1f} to {100*u.false_alarms.max():.1f} % came', f'takes {few.ratio:.2f} times the time of `predict` ({few.low:.2f} to {few.high:.2f}) and {few.megabytes:.1f} MB']

@claim
def rare_classes():
    from rare import at_share
    o = page.rows('rare')
    o = o.assign(at_share=[at_share(r) for r in o.itertuples()])
    dev = o[o.part=='development']
    enriched = 100*dev.groupby('set').rare_rows.mean()/dev.groupby('set').rows.mean()
    constant = 100*o[(o.arm=='constant') & (o.share<10)].at_share
    assert constant.between(48, 50).all()
    by = dev.groupby(['set','share','arm'])[['at_share','recall','average_precision']].mean()
    for k in [(a,b) for a in ('fear','sst2') for b in (1.,2.)]:
        new,old = by.loc[*k,'by default'],by.loc[*k,'as typed']
        assert new.recall>old.recall and new.average_precision<old.average_precision and (new.at_share>old.at_share)==(k!=('fear',2.))
    assert not len(o[(o.part=='test') & (o.arm=='by default')])
    return [f'{enriched.fear:.0f} or {enriched.sst2:.0f} % of the development rows', f'A constant has about {constant.max():.0f}']

@claim
def names_of_classes():
    o = page.rows('classes').query("what=='names' and part=='development'").groupby(['arm','set']).accuracy.mean()*100
    a,b = ([o[arm,k] for k in ('intents77','agnews','domains')] for arm in ('names alone','names and texts'))
    return ['77 intents {:.1f}, AG News {:.1f}, ten domains {:.1f}.'.format(*a), ': {:.1f}, {:.1f}, {:.1f}.'.format(*b), f"say nothing: {o['names alone','trec']:.1f}"]

@claim
def shares_of_classes():
    o = page.rows('shares')
    return [f'{o.corpora[0]} corpora', f'In {(o.naive_error<o.error).sum()} of {len(o)} settings', f'the truth in {spread(100*o.covered/o.classes, 0)} %, at {spread(o.width/o.audit_width, 2)} of the width']

@claim
def other_tasks():
    found = page.peers()
    wins = [(label,at) for label,a,b,at in found if ahead(a-b)]
    assert [at for _,at in wins]==[['ours','trainer']]*2 and sum(level(a-b) for _,a,b,_ in found)==9
    return []

@claim
def damage():
    o,k = page.stored('fuzz'),page.stored('kills')['phases']
    parts = [v for v in o.values() if isinstance(v, dict) and 'cases' in v and 'result' in v]
    assert all(v['result']+v['error']==v['cases'] for v in parts) and all(r['verdict']=='equal' for v in k.values() for r in v['rows'])
    return [f"{sum(v['cases'] for v in parts):,} damaged inputs", f"{sum(len(v['rows']) for v in k.values())} killed trainings"]

@claim
def where_others_win():
    e = {k:v['mean'] for k,v in page.stored('documents')['validation error %'].items()}
    m = d[d.seed==1].set_index(['set','n','arm']).points
    s = d.groupby(['set','arm']).points.mean()['sick3']
    assert level(gap('as typed','frozen probe','sick3',500))
    return [f"an error of {e['500 labels, trainer512']:.1f}, ours {e['500 labels, 8x256']:.1f} (standard error {100*(.15*.85/1000)**.5:.1f})", f"{m['trec',500,'SetFit']:.1f}, all layers {m['trec',500,'all layers']:.1f}",
            f"({s['frozen probe']:.1f}, ours {s['as typed']:.1f})", f"on whole reviews by {page.interval(gap('TF-IDF','frozen probe','imdb',500))[1:]}"]

text = (repo/'benchmarks/README.md').read_text()
prose = re.sub(r'<!-- (\w+) -->\n.*?<!-- end -->', '', text, flags=re.S)

@pytest.mark.parametrize('claim', claims, ids=lambda o: o.__name__)
def test_a_sentence_says_what_the_rows_say(claim):
    for o in claim(): assert o in prose

settings = set('0 2 5 29 40 77 95 100 150 200 300 500 1,200 2,000 5,000 5,452 10,000 15,000 1/r 2019'.split()) # numbers of labels, texts and draws, dates

def test_no_figure_stands_without_a_row():
    rest = prose
    for o in sorted([o for f in claims for o in f()], key=len, reverse=True): rest = rest.replace(o, '')
    rest = re.sub(r'```.*?```|`[^`]*`|F1|SST-2|TREC-6|L6-v2|float32|bfloat16|bf16', '', rest, flags=re.S)
    assert not {*re.findall(r'\d(?:[\d.,/]*\w)?', rest)}-settings
    assert len(prose.split())<=1500
