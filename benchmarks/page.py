"""The tables of benchmarks/README.md, made from the stored rows alone

    python benchmarks/page.py            # write them into the page
    python benchmarks/page.py --pictures # results/gains.png and results/price.png too
    python benchmarks/page.py --check    # exit with 1 where the page differs

A table stands between `<!-- NAME -->` and `<!-- end -->`, where NAME is one of `tables`. Intervals are Student's over draws, on the differences of arms that were trained on the same rows."""
import argparse, json, re, sys
from pathlib import Path
import numpy as np, pandas as pd

results = Path(__file__).parent/'results'
page = results.parent/'README.md'

def rows(name): return pd.DataFrame(json.loads(l) for l in (results/name/'rows.jsonl').read_text().splitlines())

def table(head, lines):
    "A Markdown table of lists of cells"
    return '\n'.join('| '+' | '.join(map(str, o))+' |' for o in [head, ['---']*len(head), *lines])

def stored(name): return json.loads((results/f'{name}.json').read_text())

def half(x):
    "Half of the 95 % interval of the mean of values, one a draw"
    from scipy.stats import t
    return t.ppf(.975, len(x)-1)*np.std(x, ddof=1)/len(x)**.5

def interval(x):
    "Mean and half of the 95 % interval of values in points, one a draw; of two draws both"
    x = np.asarray(x, dtype=float)
    if len(x)==2: return f'{x.mean():+.1f} ({min(x):+.1f}, {max(x):+.1f})'
    return f'{x.mean():+.1f}'+(f' ± {half(x):.1f}' if len(x)>1 else '')

# ---- ways to make a classifier

sets = {('clinc150',300):'ten domains, 300', ('intents77',5):'77 intents, 5 each', ('trec',100):'TREC-6, 100', ('trec',500):'TREC-6, 500', ('sst2',500):'SST-2, 500', ('agnews',400):'AG News, 400',
        ('imdb',500):'IMDb, whole reviews, 500'}
arms = {'TF-IDF':'words', 'characters':'words and parts of words', 'linear, tuned':'both, penalty tuned', 'word vectors':'word vectors', 'frozen probe':'frozen probe', 'all layers':'all layers', 'as typed':'as typed', 'as typed after masked LM':'after masked LM',
        'label spreading':'label spreading', 'SetFit':'SetFit', 'Trainer':'`Trainer`', 'Trainer, equal seconds':'`Trainer`, equal seconds', 'Trainer, three times the steps':'`Trainer`, three times the steps', 'leaderboard':'chosen by `compare`'}

words = 'TF-IDF','characters','linear, tuned' # arms without a network

def compared(draws=3): # means of arms are of the draws that all have; None: all draws, for differences
    d = rows('compare')
    d = d[(d.test==True) & d.part.isin(('run','choose')) & (d.arch=='minilm')]
    if draws: d = d[d.seed<=draws]
    d = d.drop_duplicates(['arm','set','n','seed'], keep='last') # of `--anew`
    return d.assign(points=100*d.accuracy.astype(float))

def ways():
    d,lines = compared(),[]
    shown = [a for a in arms if not a.startswith('Trainer,')]
    for key,label in sets.items():
        o = d[(d.set==key[0]) & (d.n==key[1])]
        by = {a:o[o.arm==a].points for a in shown}
        def cell(v):
            if not len(v): return ''
            return f'{v.mean():.1f}'+(f' ({len(v)})' if len(v)!=3 else '')
        lines.append([label, *map(cell, by.values())])
    cpu = d[[k in sets and k[0]!='imdb' for k in zip(d.set, d.n)]].groupby(['arm','set','n']).cpu.median()
    of = compared(None)
    answers = of[((of.precision=='bf16') | of.arm.isin(words)) & (of.set!='imdb')].groupby(['arm','set']).answers.median()
    def price(a, of=cpu, digits=0):
        v = of[a].dropna() if a in of else []
        if not len(v): return ''
        both = [f'{o:.{digits}f}' for o in (v.min(), v.max())]
        return both[0] if both[0]==both[1] else ' to '.join(both)
    prices = [['core seconds of training', *map(price, shown)], ['of 1,000 answers', *(price(a, answers, 1) for a in shown)]]
    return table(['labels', *(arms[a] for a in shown)], [*lines, *prices])

pairs = [('all layers','characters'), ('all layers','linear, tuned'), ('all layers','frozen probe'), ('all layers','SetFit'), ('all layers','Trainer'), ('all layers','Trainer, equal seconds'), ('all layers','Trainer, three times the steps'),
         ('as typed','characters'), ('as typed','frozen probe'), ('as typed','all layers'), ('label spreading','all layers'), ('as typed after masked LM','as typed'), ('leaderboard','all layers')]

def paired(d, a, b, key):
    "The differences of two arms in points, one a draw that both have"
    o = d[(d.set==key[0]) & (d.n==key[1])]
    both = [o[o.arm==k].groupby('seed').points.last() for k in (a,b)]
    return (both[0]-both[1]).dropna()

def gains():
    d,lines = compared(None),[]
    for a,b in pairs:
        def cell(key):
            x = paired(d, a, b, key)
            return interval(x)+(f' ({len(x)})' if len(x)>3 else '') if len(x)>1 else ''
        lines.append([f'{arms[a]} - {arms[b]}', *map(cell, sets)])
    return table(['points', *sets.values()], lines)

networks = {'wiki-mini':'`wiki-mini`', 'minilm':'MiniLM', 'all-mpnet-base-v2':'mpnet, base size'}

def of_networks():
    "Test rows of the first three draws, of every network"
    d = rows('compare')
    return d[(d.test==True) & (d.part=='run') & (d.seed<=3)].assign(points=lambda o: 100*o.accuracy.astype(float))

def starts():
    "All layers and the frozen probe of each network, and what the largest gains"
    d,lines = of_networks(),[]
    for key,label in sets.items():
        o = d[(d.set==key[0]) & (d.n==key[1])]
        by = {k:o[(o.arch==k) & o.arm.isin(('all layers','frozen probe'))].pivot_table(index='seed', columns='arm', values='points').dropna() for k in networks}
        by = {k:p if p.shape[1]==2 else p[:0] for k,p in by.items()}
        if not len(by['wiki-mini']): continue
        def cell(p): return f"{p['all layers'].mean():.1f} ({p['frozen probe'].mean():.1f})"+f", {len(p)} draw{'s'*(len(p)>1)}"*(len(p)<3) if len(p) else ''
        more = (by['all-mpnet-base-v2']['all layers']-by['minilm']['all layers']).dropna() if len(by['all-mpnet-base-v2']) else []
        other = o[(o.arch=='all-mpnet-base-v2') & (o.arm=='Trainer')].set_index('seed').points
        ours = (by['all-mpnet-base-v2']['all layers']-other).dropna() if len(other) else []
        lines.append([label, *map(cell, by.values()), interval(more) if len(more) else '', interval(ours) if len(ours)>2 else ''])
    return table(['all layers (frozen probe)', *networks.values(), 'mpnet - MiniLM', 'mpnet - `Trainer`'], lines)

def labels():
    d,lines = compared(),[]
    for name,label in dict(trec='TREC-6', clinc150='ten domains', sst2='SST-2', agnews='AG News', imdb100='IMDb, first 100 words').items():
        def cell(n):
            o = d[(d.set==name) & (d.n==n)].groupby('arm').points.mean()
            return f"{o['as typed']:.1f} ({o['frozen probe']:.1f}, {o['TF-IDF']:.1f})"
        lines.append([label, *map(cell, (100,500,2000))])
    return table(['as typed (frozen probe, words)', '100 labels', '500', '2,000'], lines)

def fresh():
    "What a run printed, on rows held out, and what test rows say of the classifier that it handed out in the end"
    d,lines = compared(None),[]
    choose,typed = d[d.part=='choose'],d[d.arm=='as typed'].dropna(subset='printed')
    for way,o in (('`compare`',choose), ('as typed',typed)):
        for key,label in sets.items():
            p = o[(o.set==key[0]) & (o.n==key[1])]
            if not len(p): continue
            held = 100*np.array([s[w] for s,w in zip(p.scores, p.winner)] if way=='`compare`' else [o[0] for o in p.printed])
            inside = '' if way=='`compare`' else f'{sum(a<=t/100<=b for (_,a,b),t in zip(p.printed, p.points))} of {len(p)}'
            lines.append([way, label, len(p), f'{held.mean():.1f}', f'{p.points.mean():.1f}', interval(held-p.points), inside])
    return table(['', '', 'draws', 'held out', 'test', 'difference, points', 'its interval holds the test figure'], lines)

def held_out():
    "Held-out minus fresh accuracy, by how rows are held out"
    rules = dict(quotas='a fifth of each class, the rule of before', chance='a fifth by chance', split='`split_rows`', probe='five folds of the probe', compare='folds of `compare`')
    parts = list(rows('held_out').groupby('set', sort=False))
    def gaps(o, rule): return np.concatenate([np.subtract(v['held'], v['fresh']) for v in o[rule]])
    return table(['held out minus fresh, points', *(k for k,_ in parts)], [[label, *(interval(gaps(o, rule)) for _,o in parts)] for rule,label in rules.items()])

# ---- ideas of the literature

def stages():
    "Accuracy of our own small LM from three starts, and what pretraining and stage 2 add"
    d,lines = of_networks(),[]
    words = compared()
    for key in (('trec',100),('trec',500),('clinc150',300)):
        o = d[(d.arch=='wiki-mini') & (d.set==key[0]) & (d.n==key[1])]
        means = [o[o.arm==a].points.mean() for a in ('random weights','all layers','stage 2 + all layers')]
        means.append(words[(words.set==key[0]) & (words.n==key[1]) & (words.arm=='TF-IDF')].points.mean())
        lines.append([sets[key], *(f'{v:.1f}' for v in means), *(interval(paired(d[d.arch=='wiki-mini'], *two, key)) for two in (('all layers','random weights'), ('stage 2 + all layers','all layers')))])
    return table(['', 'random weights', '`wiki-mini`', 'stage 2', 'words', '`wiki-mini` - random', 'stage 2 - `wiki-mini`'], lines)

def similarity():
    "What stage 2 of a sentence encoder gains, on development rows"
    d,lines = rows('compare'),[]
    d = d[(d.test==False) & (d.part=='run')].assign(points=lambda o: 100*o.accuracy)
    for key,label in sets.items():
        probe,layers = (paired(d, *o, key) for o in (('frozen probe after stage 2','frozen probe'), ('stage 2 + all layers','all layers')))
        if len(probe): lines.append([label, *(interval(x)+' (1)'*(len(x)==1) for x in (probe, layers))])
    return table(['stage 2, change in points', 'frozen probe', 'all layers'], lines)

def adapt():
    errors = stored('trec_adapt')['test']['test error %']
    base = np.array(errors['fine-tuning, 0.00011']['each'])
    def line(k, v):
        x = np.array(v['each'])
        return [re.sub(r', [\d.e-]+$', '', k), f'{x.mean():.1f}', '' if k.startswith('fine-tuning') else interval(x-base), v.get('reference', '')]
    return table(['TREC-6, error', 'five seeds', 'minus fine-tuning', "the tutorial's network"], [line(k, v) for k,v in errors.items() if isinstance(v, dict)])

def peers():
    "Ours and the `Trainer` on other tasks: label, the scores of both by seed, and whose rate ended its grid"
    labels = dict(agnews='AG News, accuracy', cola="CoLA, Matthews' r", mrpc='MRPC, accuracy', rte='RTE, accuracy', stsb="STS-B, Pearson's r", goemotions='GoEmotions, ranking', sst2='SST-2, accuracy', sick='SICK, accuracy')
    def pair(o, name=''): return [o[name+k]['each'] for k in ('ours','trainer')]
    found = []
    for f in ('glue','glue_sst2_sick'):
        o = stored(f)
        found += [(labels[k], *pair(o['test']['test scores %'], f'{k}, '), v['rates'], o['config']['lrs']) for k,v in o['scores %'].items()]
    for f,label,part,score in (('wnut17','names in tweets, F1, validation','validation','span F1 %'), ('spans','answers, F1','test','f1 %'), ('choice','next sentence of four, accuracy','test','accuracy %')):
        o = stored(f)
        found.append((label, *pair(o[part][score]), o['config']['rates'], o['config']['lrs']))
    return [(label, np.array(a), np.array(b), [k for k in ('ours','trainer') if rates[k] in (min(lrs),max(lrs))]) for label,a,b,rates,lrs in found]

def tasks():
    names = dict(ours='ours', trainer='`Trainer`')
    return table(['three seeds', 'ours', '`Trainer`', 'difference, points', 'best rate ended its grid'], [[label, f'{a.mean():.1f}', f'{b.mean():.1f}', interval(a-b), ', '.join(names[k] for k in at)] for label,a,b,at in peers()])

# ---- labels that were chosen, the learner's door, classes

chosen_sets = {'domains':'ten domains', 'domains, skewed':'the same, skewed', 'intents':'150 intents', 'intents, skewed':'the same, skewed', 'trec':'TREC-6', 'agnews':'AG News', 'sst2':'SST-2'}

def sessions(way, arch='minilm', part='development', few=False):
    "Yield for each set its name, the number of labels and the accuracy by draw and arm, with all labels or with a `few`"
    d = rows('label')
    d = d[(d.what=='run') & (d.part==part) & (d.arch.fillna('minilm')==arch)]
    for name,label in chosen_sets.items():
        n = d[(d.set==name) & (d.arm=='chosen')].labels.max()
        if few: n = 200 if n>300 else 100
        p = d[(d.set==name) & (d.way==way) & (d.labels==n)].pivot_table(index='draw', columns='arm', values='accuracy')*100
        if len(p): yield label, int(n), p

def between(p, a, b):
    "Say the mean difference of two arms over the draws of both"
    both = (p[a]-p[b]).dropna() if {a,b}<={*p} else []
    return '' if not len(both) else interval(both)+(f' ({len(both)})' if len(both) not in (2,3) else '')

def chosen():
    arms = 'drawn','chosen','small-text, margins','small-text, clusters'
    lines = [[label, n, *(f'{p[o].mean():.1f}' if o in p else '' for o in arms), between(p, 'chosen', 'drawn'), between(p, 'chosen', arms[2])] for label,n,p in sessions('vectors and words')]
    return table(['', 'labels', *arms, 'chosen - drawn', 'chosen - margins'], lines)

def chosen_names():
    "Labels drawn and chosen, where session and model know what the classes are called"
    def cells(n, p): return [n, f"{p['drawn, names'].mean():.1f}", f"{p['chosen, names'].mean():.1f}", between(p, 'chosen, names', 'drawn, names')]
    few,all_ = (list(sessions('vectors and words', few=o)) for o in (True,False))
    head = ['labels','drawn','chosen','difference']
    return table(['with names', *head, *head], [[label, *cells(n, p), *cells(m, q)] for (label,n,p),(_,m,q) in zip(few, all_)])

def chosen_typed():
    pool = {label:p for label,_,p in sessions('with the pool')}
    def cell(p, arm): return f'{p[arm].mean():.1f}'+(f' ({p[arm].count()})' if p[arm].count()!=3 else '') if arm in p else ''
    lines = []
    for label,n,p in sessions('as typed'):
        q = pool.get(label, {})
        lines.append([label, n, cell(p, 'drawn'), cell(p, 'chosen'), between(p, 'chosen', 'drawn'), cell(q, 'drawn'), cell(q, 'chosen, names')])
    return table(['as typed', 'labels', 'drawn', 'chosen', 'chosen - drawn', 'with the pool: drawn', 'chosen, with names'], lines)

def chosen_test():
    "Test rows: labels drawn and chosen, by the linear model and the network, and what a session trains"
    typed,pool = ({label:p for label,_,p in sessions(way, part='test')} for way in ('as typed','with the pool'))
    def cells(p): return [*(f'{p[o].mean():.1f}' if o in p else '' for o in ('drawn','chosen')), between(p, 'chosen', 'drawn')]
    lines = [[label, *cells(p), *cells(typed.get(label, {})), f"{pool[label]['chosen, names'].mean():.1f}" if label in pool else '']
             for label,_,p in sessions('vectors and words', part='test')]
    return table(['test rows', 'linear: drawn', 'chosen', 'chosen - drawn', 'as typed: drawn', 'chosen', 'chosen - drawn', 'with names and the pool'], lines)

def chosen_encoders():
    "Labels drawn and chosen, by each network as the one that chooses and learns"
    by,lines = {k:{(label,n):p for label,n,p in sessions('vectors and words', k) if {'drawn','chosen'}<={*p}} for k in networks},[]
    for label,n in by['all-mpnet-base-v2']:
        def cell(p): return '' if p is None else f"{p.drawn.mean():.1f}, {p.chosen.mean():.1f} ({between(p, 'chosen', 'drawn')})"
        lines.append([label, n, *(cell(p.get((label,n))) for p in by.values())])
    return table(['drawn, chosen (difference)', 'labels', *networks.values()], lines)

def full():
    "All training rows: accuracy and core seconds of training, of the first draws"
    d,shown = compared(),('TF-IDF','linear, tuned','frozen probe','all layers','as typed')
    def line(key, n, name):
        o = d[(d.set==key) & (d.n==n)].groupby('arm').agg(points=('points','mean'), cpu=('cpu','median'))
        def cell(a):
            if a not in o.index: return ''
            return f'{o.points[a]:.1f}'+(f' ({o.cpu[a]:,.0f} s)' if o.cpu[a]==o.cpu[a] else '')
        return [name, f'{n:,}', *map(cell, shown)]
    return table(['', 'labels', *(arms[a] for a in shown)], [line('trec', 4871, 'TREC-6'), line('imdb100', 24381, 'IMDb, first 100 words')])

def door():
    names = dict(domains='ten domains, 300', trec='TREC-6, 500', sst2='SST-2, 500')
    d,lines = rows('door'),[]
    d = d[d.part=='test'].replace({'clinc150':'domains'})
    for arm in d.arm.unique():
        def cell(name):
            p = d[d.set==name].pivot_table(index='draw', columns='arm', values='accuracy')*100
            return f'{p[arm].mean():.1f}'+('' if arm=='frozen probe' else f" ({interval((p[arm]-p['frozen probe']).dropna())})")
        lines.append([f'`{arm}`' if '(' in arm else arm, *map(cell, names)])
    return table(['test rows, in brackets minus the frozen probe', *names.values()], lines)

def ablations():
    "Each idea of ULMFiT alone, minus the training without any, on the same rows"
    d = rows('ablations')
    d = d[d.part=='test'].drop_duplicates(['set','arm','draw'], keep='last') # the rate of the wider grid
    base,names = 'all layers at once, one rate',{k:v for k,v in dict(trec='TREC-6, 500', agnews='AG News, 400', imdb100='IMDb, beginnings, 500').items() if k in {*d.set}}
    by = {k:d[d.set==k].pivot_table(index='draw', columns='arm', values='accuracy')*100 for k in names}
    def cell(arm, p):
        if arm not in p: return ''
        return f'{p[arm].mean():.1f}'+('' if arm==base else f' ({interval((p[arm]-p[base]).dropna())})')
    return table(['MiniLM, test rows, in brackets minus the first', *names.values()], [[arm, *(cell(arm, by[k]) for k in names)] for arm in d.arm.unique()])

def encoders():
    "Each encoder with the rate of the rule, beside its frozen probe and the best rate of the grid on the same draws"
    d = rows('rates')
    d = d[d.pool=='concat']
    d = d.assign(points=100*d.accuracy, lr=[str(o) for o in d.lr])
    labels,lines = {(k,n):v for (k,n),v in sets.items()} | {('fakenews_es',300):'Spanish news, 300'},[]
    for (name,key,n),o in d.groupby(['encoder','set','labels'], sort=False):
        p = o.groupby(['draw','lr']).points.mean().unstack() # a draw in bfloat16 and in float32: their mean
        if '0.0001' not in p or (key,n) not in labels: continue
        p = p[p['0.0001'].notna()]
        other = {lr:(p[lr]-p['0.0001']).dropna() for lr in p if lr not in ('frozen probe','0.0001')}
        best = max(other, key=lambda lr: other[lr].mean(), default=None)
        bf16 = o[(o.lr=='0.0001') & (o.precision=='bf16')].cpu_seconds
        lines.append([name, labels[key,n], len(p), f"{p['frozen probe'].mean():.1f}", f"{p['0.0001'].mean():.1f} ({interval(p['0.0001']-p['frozen probe'])})" if len(p)>1 else f"{p['0.0001'].mean():.1f}",
                      '' if best is None else f'{float(best):.2g}: {interval(other[best])}'.replace('e-0','e-'), f'{bf16.median():.0f}' if len(bf16) else ''])
    return table(['encoder','labels','draws','frozen probe','by the rule, 1e-4 (minus the probe)','best other rate, minus the rule','core seconds, bfloat16'], lines)

def unknown():
    names = dict(domains='ten domains, 300', trec='TREC-6 without a class', agnews='AG News without a class')
    d,lines = rows('classes'),[]
    d = d[(d.what=='unknown') & (d.part=='test')].sort_values('draw', kind='stable')
    def both(x, digits=0): return ', '.join(f'{o:.{digits}f}' for o in x)
    for name,label in names.items():
        for arm,o in d[d.set==name].groupby('arm', sort=False):
            got = ['', ''] if o.false_alarms.isna().any() else [both(100*o.false_alarms, 1), both(100*o.caught_at_05)]
            lines.append([label, arm, both(o.auroc, 2), both(100*o.caught), *got])
    return table(['texts of no class, test rows, both draws', '', 'AUROC', 'caught at 5 % false alarms, %', '`unknown=.05`: false alarms, %', 'caught, %'], lines)

def rare():
    from rare import at_share
    shown = {'TF-IDF, balanced':'TF-IDF, balanced', 'frozen probe':'frozen probe', 'frozen probe, balanced':'frozen probe, balanced', 'leaderboard':'`leaderboard`'} # test rows
    layers = {'as typed':'all layers, equal weights', 'as typed, balanced':'all layers, class weights', 'by default':'a stage by default'} # development rows, 1 and 2 %
    d,lines = rows('rare'),[]
    d['at_share'] = [at_share(o) for o in d.itertuples()]
    d = d[(d.part=='test') & d.arm.isin(shown) | (d.part=='development') & d.arm.isin(layers) & (d.share<3)].sort_values(['part','set','share'], ascending=[False,True,True], kind='stable')
    for (part,name,share,arm),o in d.groupby(['part','set','share','arm'], sort=False):
        label = (shown | layers)[arm]+(' (1)' if len(o)==1 else '')
        lines.append([part, dict(fear='fear', sst2='positive phrases')[name], f'{share:g} %', label, *(f'{100*o[c].mean():.0f}' for c in ('at_share','average_precision','recall','precision'))])
    return table(['rows', 'rare class of 1,000 rows', 'share', '', 'macro F1 at that share', 'average precision', 'recall', 'precision'], lines)

# ---- speed and memory

def fmt(x): return f'{x:.2g}' if abs(x)<.01 else f'{x:,.0f}' if abs(x)>=100 else f'{x:.2f}'

def targets(f):
    "Figures of a file of results: what, median, lowest, highest, goal, is it met; where a file has none, made here"
    o = stored(f)
    if 'targets' in o: return o, o['targets']
    def times(what, each, target=None, least=True): # ratios
        m = float(np.median(each))
        return dict(what=what, median=m, min=min(each), max=max(each), target=target and f"{'>=' if least else '<='} {target}", met=target and (m>=target if least else m<=target))
    if f=='predict':
        goals = {('mix','as typed','the default pipeline'):2.3, ('mix','float32','its best batch size'):1.25}
        res = [times(f'{k}: {how}, times {a}', v[how][f'times {a}']['each'], goals.get((k,how,a))) for k,v in o['sets'].items() for how in ('as typed','float32')
               for a in ('the default pipeline','its best batch size','the bare loop')]
        return o, res+[times(f"{k}: labels as typed equal to the pipeline's, %", [v['as typed']['labels of the pipeline, %']], 99.8) for k,v in o['sets'].items()]
    if f=='export':
        res = [times(f'{k}: {m}, times the pipeline at its best batch size', v[m]['each']) for k,v in o['sets'].items() for m in ('torch','onnx','onnx_int8')]
        return o, res+[times(f'{k}: labels of int8 equal to those of torch, %, rows that chose nothing', [v], 99) for k,v in o['1,000 rows that chose nothing']['int8, labels of torch, %'].items()]
    if f=='cold_start': return o, [times('a new process that opens a directory and answers, times the same with transformers alone', o['ratio']['each'], 1.1, False)]
    raise KeyError(f)

speeds = dict(train_lm_s1='train_lm.py', train_lm_s1_fp32='train_lm.py --precision fp32', train_lm_s2='train_lm.py --part s2', train_lm_s2_fp32='train_lm.py --part s2 --precision fp32', train_lm_s3='train_lm.py --part s3', train_lm_s5='train_lm.py --part s5', two_processes='train_lm.py --part two', store='store.py', corpus_size='corpus_size.py',
              predict_csv='predict_csv.py', frozen='frozen.py', vocabulary='vocabulary.py', predict='predict.py', export='export.py', cold_start='cold_start.py')

def speed():
    lines = []
    for f,script in speeds.items():
        o,got = targets(f)
        for t in got:
            what = re.sub(r'^\s*[SV]\d+\s+', '', t['what']).strip().replace('the one by the other', 'base size: tokens/s times the Trainer, by the ratio of counted operations')
            if what=='the same by processor time':
                if fmt(t['median'])==fmt(clock): continue
                what = f'{before}, processor time'
            elif what.startswith('times fastai'): what = f"{before.split(':')[0]}: {what}"
            elif not what.startswith('share of encode'): before,clock = what,t['median']
            if not t.get('target') and f not in ('two_processes','export','predict') or 'cache' in what: continue # of states that nothing keeps any more
            spread = '' if t['min']==t['max'] else f" ({fmt(t['min'])} to {fmt(t['max'])})"
            goal = (t.get('target') or '').replace('>= ', 'at least ').replace('<= ', 'at most ')
            goal = re.sub(r'[\d.e-]+$', lambda m: f'{float(m[0]):g}', goal)
            if f.endswith('fp32'): what += ', float32'
            lines.append([what, fmt(t['median'])+spread, goal+' **missed**'*(t.get('met') is False), f"{o['date']}, {'Intel' if 'Intel' in o['processor'] else 'AMD'}", f'`{script}`'])
    return table(['what', 'median (lowest to highest)', 'goal', 'measured', 'script'], lines)

# ---- pictures

colors = {'TF-IDF':'#94a3b8', 'characters':'#64748b', 'word vectors':'#0ea5e9', 'frozen probe':'#a16207', 'all layers':'#15803d', 'as typed':'#15803d', 'after masked LM':'#7c3aed', 'label spreading':'#b45309',
          'SetFit':'#dc2626', 'Trainer':'#9333ea', 'leaderboard':'#1d4ed8'}

def pictures():
    "Draw what each way gains, and what it costs"
    import matplotlib.pyplot as plt
    d,every = compared(),of_networks()
    shown = [k for k in sets if k[0]!='imdb']
    fig,ax = plt.subplots(figsize=(9,4), layout='constrained')
    steps = ['characters','word vectors','frozen probe','all layers','label spreading']
    for y,key in enumerate(shown[::-1]):
        o = d[(d.set==key[0]) & (d.n==key[1])].groupby('arm').points
        known = [a for a in steps if a in o.groups]
        ax.plot([o.get_group(a).mean() for a in known], [y]*len(known), color='#e2e8f0', lw=6, zorder=0, solid_capstyle='round')
        for a in known:
            v = o.get_group(a)
            ax.plot([v.min(), v.max()], [y,y], color=colors[a], lw=2)
            ax.plot(v.mean(), y, 'o', color=colors[a], ms=9, label=arms[a] if y==len(shown)-1 else None)
        for arch,mark in (('wiki-mini','<'), ('all-mpnet-base-v2','>')):
            v = every[(every.set==key[0]) & (every.n==key[1]) & (every.arch==arch) & (every.arm=='all layers')].points
            if len(v): ax.plot(v.mean(), y, mark, color=colors['all layers'], mfc='white', ms=8, label=f'all layers, {networks[arch]}'.replace('`','') if y==len(shown)-1 else None)
    ax.set_yticks(range(len(shown)), [sets[k] for k in shown[::-1]])
    ax.set(xlabel='accuracy on test rows, %; lines reach from the lowest to the highest draw')
    fig.legend(*ax.get_legend_handles_labels(), frameon=False, ncols=4, loc='outside upper center')
    ax.spines[['top','right','left']].set_visible(False)
    fig.savefig(results/'gains.png', dpi=80)
    fig,axs = plt.subplots(3, 3, figsize=(11,8.5), layout='constrained')
    large = {('trec',4871):'TREC-6, 4,871', ('imdb',500):'whole reviews, 500', ('imdb100',24381):'first words of 24,381 reviews'}
    for ax,(key,title) in zip(axs.flat, ({k:sets[k] for k in shown} | large).items()):
        of = d[(d.set==key[0]) & (d.n==key[1])]
        of = pd.concat([of, every[(every.set==key[0]) & (every.n==key[1]) & (every.arch=='all-mpnet-base-v2') & (every.arm=='all layers')].assign(arm='all layers, mpnet')])
        here = colors | {'all layers, mpnet':'#166534'}
        o = of[of.arm.isin(here) & ((of.arm!='as typed') | (key[0]=='imdb'))].groupby('arm').agg(cpu=('cpu','median'), points=('points','mean')).dropna()
        o = o.assign(cpu=o.cpu.clip(lower=.5), error=100-o.points).sort_values('cpu')
        best = o[o.error<=o.error.cummin()]
        ax.step(best.cpu, best.error, where='post', color='#cbd5e1', zorder=0)
        for a,r in o.iterrows(): ax.plot(r.cpu, r.error, '>' if 'mpnet' in a else 's' if a=='as typed' else 'o', mfc='white' if 'mpnet' in a else None, color=here[a], label=arms.get(a, a).replace('`',''))
        ax.set(xscale='log', title=title, xlabel='core seconds of training', ylabel='error, %', xlim=(.3, 6000), ylim=(0, None))
        ax.spines[['top','right']].set_visible(False)
    found = {l:h for ax in axs.flat for h,l in zip(*ax.get_legend_handles_labels())}
    fig.legend(found.values(), found, frameon=False, ncols=5, loc='outside upper center')
    fig.savefig(results/'price.png', dpi=80)

tables = dict(ablations=ablations, encoders=encoders, ways=ways, gains=gains, starts=starts, labels=labels, fresh=fresh, held_out=held_out, stages=stages, similarity=similarity, adapt=adapt, chosen=chosen, chosen_names=chosen_names, chosen_test=chosen_test, chosen_encoders=chosen_encoders, chosen_typed=chosen_typed, full=full, door=door, unknown=unknown, rare=rare, tasks=tasks, speed=speed)

def rendered(text):
    "The page `text` with its tables made anew"
    def anew(m):
        if m[1] not in tables: raise KeyError(f'{m[1]} is no table; expected one of {", ".join(tables)}')
        return f'<!-- {m[1]} -->\n{tables[m[1]]()}\n<!-- end -->'
    return re.sub(r'<!-- (\w+) -->\n.*?<!-- end -->', anew, text, flags=re.S)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--check', action='store_true', help='only say whether the page agrees with the rows')
    p.add_argument('--pictures', action='store_true', help='draw the pictures too')
    args = p.parse_args()
    old = page.read_text()
    new = rendered(old)
    if args.check: sys.exit(old!=new and f'{page} differs from the rows; run `python benchmarks/page.py`')
    page.write_text(new)
    if args.pictures: pictures()
