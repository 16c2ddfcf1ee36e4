"Figures and rows: the tables of the benchmarks' page are made from stored rows, and so is each figure of README"
import json, re, sys
from pathlib import Path
import pytest

repo = Path(__file__).parent.parent
sys.path.insert(0, str(repo/'benchmarks'))
import page
readme = (repo/'README.md').read_text()
old = dict(compare=413, documents=11, papers=50, checks=12, sizes=16, objectives=42, heads=3, attribution=2, imdb=10, trec=40) # rows without commit, versions or processor, of before 2026-11-28

def test_the_tables_are_those_of_the_rows():
    text = (repo/'benchmarks/README.md').read_text()
    assert page.rendered(text)==text, 'run `python benchmarks/page.py`'
    assert all(f'<!-- {o} -->' in text for o in page.tables)
    with pytest.raises(KeyError, match='no table'): page.rendered('<!-- odd -->\n<!-- end -->')

def test_a_row_says_what_it_was_made_with():
    for f in (repo/'benchmarks/results').rglob('rows.jsonl'):
        lacks = [o for o in map(json.loads, f.read_text().splitlines()) if not ({'commit','processor'}<={*o} and {'versions','torch'} & {*o})]
        assert len(lacks)<=old.get(f.parent.name, 0), f'{f.parent.name}: {lacks[-1]}'

@pytest.fixture(scope='module')
def mean():
    d = page.compared()
    by = d.groupby(['set','n','arm']).points.mean()
    return lambda *key: by[key]/100

def test_figures_of_the_readme(mean):
    def two(*xs): return ', '.join(f'{x:.2f}' for x in xs)
    c,t = [('clinc150',300,a) for a in ('as typed','frozen probe','label spreading','TF-IDF')],[('trec',100,a) for a in ('as typed','frozen probe')]
    assert f'CLINC150, 300 labels: {mean(*c[0]):.2f}, frozen {mean(*c[1]):.2f}; TREC-6, 100: {two(*(mean(*o) for o in t))}' in readme
    assert f'accuracy {mean(*c[0]):.2f} on 4,500 others, TF-IDF {mean(*c[3]):.2f}' in readme
    assert f'CLINC150, 300 labels: {mean(*c[0]):.2f}, then {mean(*c[2]):.2f}' in readme
    assert f"error {100*(1-mean('imdb',500,'as typed')):.1f} %, TF-IDF {100*(1-mean('imdb',500,'TF-IDF')):.1f}" in readme
    d = page.rows('label')
    d = d[(d.what=='run') & (d.way=='as typed') & (d.part=='development')].groupby(['set','labels','arm']).accuracy.mean()
    assert f"ten domains, 300 labels: {d['domains',300,'chosen']:.2f} chosen, {d['domains',300,'drawn']:.2f} random; 150 intents, most of them rare, 200 labels: {two(*(d['intents, skewed',200,o] for o in ('chosen','drawn')))}" in readme
    d = page.rows('classes')
    d = d[(d.what=='names') & (d.part=='development')].groupby(['set','arm']).accuracy.mean()
    said = '; '.join(f"{label} {two(d[k,'names alone'], d[k,'names and texts'])}" for k,label in dict(intents77='77 intents', agnews='AG News', domains='ten domains').items())
    assert said in readme
    d = page.rows('door')
    d = d[(d.set=='clinc150') & (d.part=='test')].groupby('arm').accuracy.mean()
    assert f"{d['fit_one_cycle(5)']:.2f} by `fit_one_cycle(5)`, {d['steps']:.2f} by `freeze` to `unfreeze`, {d['fit_plan()']:.2f} by `fit_plan()`" in readme
    assert f"error {stage2('500 labels, wiki')} %, then {stage2('500 labels, both')}; TF-IDF" in readme

def test_the_comparison_in_the_readme_was_run():
    o = json.loads((repo/'benchmarks/results/readme_compare.json').read_text())
    assert 'Use all layers' in o['says'][0] and {'commit','processor','versions'}<={*o}
    for e in o['entries']:
        if e['entry'] in ('all layers','frozen probe','TF-IDF'): assert f"{e['score']:.3f} ({e['low']:.3f} to {e['high']:.3f})" in readme

def test_the_figures_of_the_demo_are_those_of_a_run():
    o = json.loads((repo/'benchmarks/results/demo.json').read_text())['accuracy_on_4500_test_rows']
    a,b,c,d,e = (f"{o['classifier'+k]:.2f}" for k in (' from random weights',' from the general LM','',' from minilm',' from minilm with chosen labels'))
    assert f'test: random weights {a}, `wiki-mini` {b}, after stage 2 {c}; `minilm` {d}, with chosen labels {e}' in readme

def stage2(name):
    o = json.loads((repo/'benchmarks/results/stage2_trec.json').read_text())['test']['test error %']
    return f"{next(v['mean'] for k,v in o.items() if k.startswith(name)):.1f}"

def test_other_claims_have_a_file():
    text = (repo/'benchmarks/README.md').read_text()
    one,few = ([stage2(f'{n} labels, {k}') for k in ('random','wiki','both')] for n in (500,100))
    assert f"500 labels: random weights {one[0]}, `wiki-mini` {one[1]}, stage 2 {one[2]}; 100 labels: {', '.join(few)}" in text
    o = json.loads((repo/'benchmarks/results/trec_adapt.json').read_text())['test']
    found = {f"{v['mean']:.2f} ± {v['sd']:.2f}" for v in o['test error %'].values() if isinstance(v, dict)}
    assert len(found & {f'{a} ± {b}' for a,b in re.findall(r'(\d\.\d\d) ± (\d\.\d\d)', text)})>=4
