"The documentation site is built from the notebooks, complete, without a network; what continuous integration would run is there"
import json, os, re, subprocess, sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse
import pytest, yaml

@pytest.fixture(scope='module')
def site(root, tmp_path_factory):
    "The folder of a site that was built just now"
    out = tmp_path_factory.mktemp('site')
    env = {k:v for k,v in os.environ.items() if k!='IN_TEST'}
    r = subprocess.run([sys.executable, '-W', 'ignore', root/'tools/docs.py', out], env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stdout+r.stderr
    return out

@pytest.fixture(scope='module')
def docs(root):
    "tools/docs.py as a module"
    sys.path.insert(0, str(root/'tools'))
    try:
        import docs
        yield docs
    finally: sys.path.remove(str(root/'tools'))

def test_a_config_with_fields_is_shown_without_those_of_transformers(docs):
    from fastformers.models.awd_lstm import AWDLSTMConfig
    shown = docs.Doc(AWDLSTMConfig)._repr_markdown_()
    assert 'class AWDLSTMConfig(PreTrainedConfig)' in shown and 'problem_type' not in shown

class Html(HTMLParser):
    "What a page links to, loads, is named by, and says"
    def __init__(self, path):
        super().__init__()
        self.ids,self.links,self.loads,self.text,self.skip = set(),[],[],[],0
        self.feed(path.read_text('utf-8'))
    def handle_starttag(self, tag, attrs):
        d = dict(attrs)
        self.ids |= {d[o] for o in ('id','name') if d.get(o)}
        if tag=='a' and 'href' in d: self.links.append(d['href'])
        if d.get('src'): self.loads.append(d['src'])
        if tag=='link' and d.get('rel') not in ('canonical', None): self.loads.append(d['href'])
        self.skip += tag in ('script','style')
    def handle_endtag(self, tag): self.skip -= tag in ('script','style')
    def handle_data(self, data):
        if not self.skip: self.text.append(data)

@pytest.fixture(scope='module')
def pages(site): return {o.relative_to(site).as_posix():Html(o) for o in site.rglob('*.html')}
def text(page): return ' '.join(''.join(page.text).split())

def broken(site, pages):
    "Links and loaded files that lead nowhere on the site"
    for name,page in pages.items():
        if name=='404.html': continue                        # its links are absolute: it is shown at any address
        for o in page.links+page.loads:
            url = urlparse(o)
            if url.scheme in ('http','https','mailto','data'): continue
            to = (site/name).parent/unquote(url.path) if url.path else site/name
            if to.is_dir(): to = to/'index.html'
            if not to.exists(): yield name, o
            elif url.fragment and to.suffix=='.html' and unquote(url.fragment) not in pages[os.path.relpath(to.resolve(), site.resolve())].ids: yield name, o

@pytest.mark.slow
def test_links_pictures_and_anchors_resolve(site, pages):
    assert sum(len(o.links) for o in pages.values())>1000
    assert not (bad := sorted(set(broken(site, pages)))), bad

def test_a_broken_link_is_found(tmp_path):
    (tmp_path/'a.html').write_text('<h1 id="x"></h1><a href="#x"></a><a href="#y"></a><a href="b.html"></a><img src="c.png"><a href="https://x.org"></a>')
    assert list(broken(tmp_path, {'a.html':Html(tmp_path/'a.html')}))==[('a.html','#y'), ('a.html','b.html'), ('a.html','c.png')]

def test_nothing_is_loaded_from_elsewhere(site, pages):
    away = [(n,o) for n,p in pages.items() for o in p.loads if urlparse(o).netloc]
    away += [(o.name,m) for o in site.rglob('*.css') for m in re.findall(r'(?:@import|url\()\s*["\']?(https?:[^"\')]*)', o.read_text('utf-8'))]
    assert not away, away

def test_each_module_has_a_page_and_its_source(root, site, pages):
    for o in sorted((root/'fastformers').rglob('[!_]*.py')):
        name,code = o.relative_to(root/'fastformers').with_suffix('').as_posix(),o.read_text('utf-8')
        page = pages[f'{name}.html']
        named = re.search(r'^__all__ = (\[.*?\])', code, re.M|re.S)
        public = [n for n in re.findall(r'^(?:class|def) ([A-Za-z]\w*)', code, re.M) if not named or f"'{n}'" in named[1]]
        plain = [n for n in public if not re.search(rf'^@\w.*\n(?:@.*\n)*(?:class|def) {n}\b', code, re.M)]
        assert not (missing := [n for n in plain if n.lower() not in page.ids]), f'{name}: not documented: {missing}'
        assert code.split()[-1] in text(pages[f'source/{name}.html'])

def test_signature_shows_docments(pages):
    page = text(pages['learner/core.html'])
    for o in ('def lm_learner(', 'drop_mult', 'Multiplies every dropout probability'): assert o in page

def test_a_decorated_function_links_to_its_own_source(pages):
    for page,file in (('learner/core','learner/core'),('data/block','data/block'),('ulmfit/stage','ulmfit/stage')):
        assert {o.partition('#')[0] for o in pages[f'{page}.html'].links if o.startswith('../source/')}=={f'../source/{file}.html'}

def test_patched_methods_are_documented(pages): assert {'learner.fit_schedule'} <= pages['callback/schedule.html'].ids

def test_methods_stand_with_their_class(pages):
    assert {'schedule.at','schedule.rescale'} <= pages['callback/schedule.html'].ids and 'predictor.scores' in pages['inference/predictor.html'].ids

def test_a_room_has_a_page_of_its_modules(root, pages):
    for o in (root/'fastformers').glob('*/__init__.py'):
        page = pages[f'{o.parent.name}/index.html']
        assert o.read_text('utf-8').strip().strip('"') in text(page)
        assert {f'{m.stem}.html' for m in o.parent.glob('[!_]*.py')} <= {*page.links}

def test_index_is_the_readme(root, pages):
    page = text(pages['index.html'])
    code = re.search(r'^```python\n(.*?)^```', (root/'README.md').read_text('utf-8'), re.M|re.S)[1]
    for o in filter(None, map(str.split, code.splitlines())): assert ' '.join(o) in page
    assert 'few hundred labels' in page and 'pip install' in page, 'what the page begins with'
    assert any(o.startswith('images/') or o.startswith('pictures/') for o in pages['index.html'].loads)

def test_navigation_is_tutorials_then_rooms_in_order(root, docs, pages):
    tutorials = [f"tutorials/{o.stem.split('_', 1)[1]}.html" for o in sorted((root/'nbs/tutorials').glob('[!_]*.ipynb'))]
    links = [*dict.fromkeys(o for o in pages['index.html'].links if o.endswith('.html') and not o.startswith('index'))]
    assert links[:len(tutorials)]==tutorials and links[len(tutorials)]=='files.html'
    assert sorted(docs.rooms)==sorted(o.parent.name for o in (root/'fastformers').glob('*/__init__.py'))
    where = [links.index(f'{o}/index.html') for o in docs.rooms]
    assert where==sorted(where)

def test_a_reader_finds_the_questions(pages):
    links = [*pages['index.html'].links]
    assert 'how_do_i.html' in links and links.index('how_do_i.html')<links.index('results.html')
    assert len([o for o in pages['how_do_i.html'].text if o.rstrip().endswith('?')])>=20

def test_the_public_surface_is_one_file(site):
    import fastformers.all as o
    s = (site/'llms.txt').read_text('utf-8')
    assert not (lost := [n for n in o.__all__ if callable(getattr(o, n)) and f'`{n}' not in s]), lost
    assert 'fine_tune_classifier(' in s and 'how_do_i.html' in s

def formulas(root):
    "The formulas of the notebooks: those in Markdown that stand between dollar signs, outside code"
    for nb in sorted((root/'nbs').rglob('[!_.]*.ipynb')):
        for c in json.loads(nb.read_text('utf-8'))['cells']:
            prose = re.sub(r'`[^`]*`', '', ''.join(c['source'])) if c['cell_type']=='markdown' else ''
            yield from ((nb.name, a or b) for a,b in re.findall(r'\$\$(.+?)\$\$|\$([^$\n]+)\$', prose))

@pytest.fixture(scope='module')
def drawn(docs):
    "A function that turns Markdown into HTML, as for a page of the site"
    from markdown import Markdown
    return Markdown(extensions=['formulas:Formulas', 'tables']).convert

@pytest.mark.parametrize('src,want', [
    (r'of $\frac{a}{b}$ and $x_i$, `$c$`', 2), (r'$$\sum_i x_i$$', 1), (r'$a$ begins a line', 1), (r'| a |' '\n|---|\n' r'| $p_{LM}$ |', 1),
    (r'costs $5 and $6', 0), (r'a `$x$` b', 0), (r'\$x\$', 0), ('```\n$x$\n```', 0), ('5 $ and 6 $ more', 0), ('$a $', 0)])
def test_formulas_are_mathml(drawn, src, want):
    html = drawn(src)
    assert html.count('<math')==want and (want==0 or '$' not in re.sub('<code>.*?</code>', '', html)), html
    assert ('display="block"' in html)==src.startswith('$$')

def test_a_wrong_formula_fails_the_build(drawn):
    with pytest.raises(Exception, match='nosuchcommand'): drawn(r'$\nosuchcommand{x}$')

def test_each_formula_can_be_drawn(root, drawn):
    found = [*formulas(root)]
    assert len(found)>50
    for name,o in found: assert '<math' in drawn(f'${o}$'), (name, o)

def test_formulas_need_no_script(root, site, pages):
    html = {n:(site/n).read_text('utf-8') for n in pages}
    assert sum(o.count('<math') for n,o in html.items() if not n.startswith('source/'))==len([*formulas(root)])
    assert not (raw := [n for n,p in pages.items() if not n.startswith('source/') and re.search(r'\\(frac|sum|mathrm|lambda|alpha)\b', text(p))]), raw
    assert (site/'assets/math.woff2').exists() and (site/'assets/math.woff2.LICENSE').exists()

def test_notes_are_there(pages): assert {'log.html','skill.html','changelog.html','results.html','contributing.html'} <= pages.keys()

def test_all_is_rendered(pages):
    for name,page in pages.items():
        body = text(page)
        if name.startswith('source/') or name in ('design.html','papers/history.html'): continue # they name directives
        assert not (m := re.search(r'#\| ?\w+|^:::|\s:::|\[[^\]]*\]\(\S+\.ipynb|&#10;|\{#\S+ \.', body)), (name, m)

def test_no_path_of_this_machine(root, site):
    for o in [*site.rglob('*.html'), *site.rglob('*.js*'), *site.rglob('*.xml')]:
        assert str(root) not in (s := o.read_text('utf-8')) and str(site) not in s and not re.search(r'(?<![\w.:/])/(root|work|home|Users)/\w', s), o

def test_search_knows_words_of_the_pages(site):
    docs = json.loads((site/'search/search_index.json').read_text('utf-8'))['docs']
    def found(word): return {o['location'].partition('#')[0] for o in docs if word in o['title']+o['text']}
    assert 'callback/schedule.html' in found('chain_thaw') and 'index.html' in found('ULMFiT') and 'log.html' in {o['location'] for o in docs}
    assert not [o for o in docs if o['location'].startswith('source/')]
    assert (site/'search/search_index.js').exists(), 'search in a folder needs the index as a script'

def test_each_question_is_found_by_its_words(site, pages):
    index = (site/'search/search_index.json').read_text('utf-8')
    docs = json.loads(index)['docs']
    asked = {o['location']:o for o in docs if o['location'].startswith('how_do_i.html#')}
    assert len(asked)>=50 and {o.partition('#')[2] for o in asked} <= pages['how_do_i.html'].ids
    for o in ('active learning','out of scope','imbalanced','multi-label','multilingual','deploy','Docker','W&B','new category','early stopping','class weights','my own checkpoint','by date','model card'):
        assert any(o in d['title'] and d['boost']>1 for d in asked.values()), o
    assert (site/'search/search_index.js').read_text('utf-8')==f'var __index = {index}', 'the same without a server'

def test_how_do_i_says_where_each_function_comes_from(root):
    names = {'predict','predictor'} # of the page's first lines
    exec('import pandas as pd\nfrom fastai.text.all import *\nfrom fastformers.all import *', known := {})
    lines = [''.join(o['source']) for o in json.loads((root/'nbs/how_do_i.ipynb').read_text('utf-8'))['cells']]
    for line in filter(re.compile(r'\|.*\?').match, '\n'.join(lines).splitlines()):
        calls = {n for o in re.findall('`([^`]+)`', line) for n in re.findall(r"(?<![.\w/'-])([A-Za-z_]\w*)\(", o)}
        assert calls <= {*known, *known['__builtins__'], *names} or re.search(r'\((in|of) `', line), line

# How cells become pages

@pytest.mark.parametrize('src,want', [
    ('::: {.callout-note}\nBe *kind*.\n:::', '!!! note "Note"\n\n    Be *kind*.\n'),
    (':::{.callout-tip title="Try"}\n```\na\n\nb\n```\n:::', '!!! tip "Try"\n\n    ```\n    a\n\n    b\n    ```\n'),
    ('::: {.callout-important collapse="true"}\n## Look\n\nHere\n:::', '??? info "Look"\n\n    Here\n'),
    ('::: {.column-margin}\nText\n:::', 'Text\n'), ('no block ::: here', 'no block ::: here')])
def test_callouts(docs, src, want): assert docs.callouts(src).strip()==want.strip()

def test_cells_follow_their_directives(docs, root, tmp_path, monkeypatch):
    def code(src, *outs): return dict(cell_type='code', id=str(len(src)), metadata={}, execution_count=None, source=src, outputs=[*outs])
    def data(**kw): return dict(output_type='display_data', metadata={}, data={k.replace('_', '/'):v for k,v in kw.items()})
    printed = dict(output_type='stream', name='stdout', text='\x1b[31m<red>\x1b[0m\n\nmore\n')
    cells = [dict(cell_type='markdown', id='a', metadata={}, source='# A page\n\n> one line'), code('#| hide\nsecret = 1'), code('#| export\nsizes = {"small":1}', data(text_plain='gone')),
        code('#| export\nimport never'), code('#| echo: false\nunseen', data(text_plain='shown')),
        code('#| code-fold: true\nfolded()'), code('#| include: false\nnever()'), code('#| slow\nslow()', printed), code('plot()', data(image_png='aGk=')),
        code('table()', data(text_html='<style>a</style><table>\n<tr><td>t</td></tr>\n\n</table>', text_plain='no'))]
    path = tmp_path/'07a_a_page.ipynb'
    path.write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
    monkeypatch.chdir(root)
    page = docs.Page(path, tmp_path)
    assert page.name=='a_page' and page.title=='A page' and page.files=={'pictures/a_page_1.png':b'hi'}
    body = page.md.split('# A page', 1)[1]
    for o in ('one line', '??? code "Source"\n\n    ```python\n    sizes = {', 'shown', '??? code "Code"\n\n    ```python\n    folded()', 'slow()', '&lt;red&gt;&#10;&#10;more',
              '<div class="out"><table> <tr><td>t</td></tr> </table></div>', '![A page](pictures/a_page_1.png)'): assert o in body, o
    for o in ('secret', 'unseen', 'never', '#|', '\x1b', '<style', '>no<', 'gone'): assert o not in body, o

def test_a_site_of_a_repository_links_to_its_notebooks(docs, root, monkeypatch):
    path = root/'nbs/tutorials/12_label.ipynb'
    monkeypatch.delenv('GITHUB_REPOSITORY', raising=False); assert docs.where(path) is None
    for k,v in dict(GITHUB_SERVER_URL='https://example.org', GITHUB_REPOSITORY='you/fastformers').items(): monkeypatch.setenv(k, v)
    s = docs.where(path)
    assert '(https://example.org/you/fastformers/blob/main/nbs/tutorials/12_label.ipynb)' in s and '/github/you/fastformers/blob/main/nbs/tutorials/12_label.ipynb)' in s

@pytest.mark.filterwarnings('ignore::FutureWarning')
def test_links_of_notebooks_become_links_of_the_site(docs, root, monkeypatch):
    monkeypatch.chdir(root)
    schedule = next((root/'nbs/callback').glob('*_schedule.ipynb'))
    links = docs.Links([docs.Page(schedule), docs.Page(root/'nbs/index.ipynb')])
    here = lambda src: links(src, 'nbs/callback', 'callback/schedule')
    for src,want in [(f'[a]({schedule.name}#x)', '[a](../callback/schedule.md#x)'), ('[a](../../CHANGELOG.md)', '[a](../changelog.md)'), ('[a](schedule.html)', '[a](../callback/schedule.md)'),
        ('[a](https://x.org/nbs)', '[a](https://x.org/nbs)'), ('[a](#there)', '[a](#there)'), ('![a](../images/b.png)', '![a](../images/b.png)'), ('[a](../../LICENSE)', '[a](../files/LICENSE)'),
        ('`lp_ft` and `fit_schedule()`', '[`lp_ft`](../callback/schedule.md#lp_ft) and [`fit_schedule()`](../callback/schedule.md#learner.fit_schedule)'),
        (f'[`lp_ft`]({schedule.name})', '[`lp_ft`](../callback/schedule.md)'), ('# `lp_ft`\ntext', '# `lp_ft`\ntext'), ('```\n`lp_ft`\n```', '```\n`lp_ft`\n```'),
        ('`Learner`', '[`Learner`](https://docs.fast.ai/learner.html#learner)'), ('`first` `x` ``lp_ft``', '`first` `x` ``lp_ft``'),
        ('`callback.schedule`', '[`callback.schedule`](../callback/schedule.md)'), ('`callback/`', '[`callback/`](../callback/index.md)')]:
        assert here(src)==want
    assert links(f'`lp_ft` [a](callback/{schedule.name})')=='[`lp_ft`](callback/schedule.md#lp_ft) [a](callback/schedule.md)'
    assert links.files=={'LICENSE'}

# What continuous integration runs

def workflows(root): return {o.stem:yaml.safe_load(o.read_text('utf-8')) for o in (root/'.github/workflows').glob('*.yaml')}

def test_workflows_are_well_formed(root):
    flows = workflows(root)
    assert flows.keys()=={'test','docs','release'}
    targets = set(re.findall(r'^([\w-]+):', (root/'Makefile').read_text('utf-8'), re.M))
    for name,o in flows.items():
        assert o['name']==name and o[True] and o['permissions']=={'contents':'read'}, name          # YAML reads the key `on` as True
        for job in o['jobs'].values():
            assert job['runs-on'] and job['steps'] and all(('uses' in s)!=('run' in s) for s in job['steps'])
            assert set(job.get('needs', '').split()) <= o['jobs'].keys()
            assert {m for s in job['steps'] for m in re.findall(r'\bmake ([\w-]+)', s.get('run', ''))} <= targets

def test_tests_run_where_they_should(root):
    o = workflows(root)['test']['jobs']['test']
    assert o['strategy']['matrix']=={'os':['ubuntu-latest','macos-latest'], 'python':['3.11','3.12','3.13']} and {'run':'make test'} in o['steps']

def test_only_publishing_may_ask_for_a_token(root):
    asks = {f'{n}.{k}' for n,o in workflows(root).items() for k,job in o['jobs'].items() if 'id-token' in job.get('permissions', {})}
    assert asks=={'docs.deploy','release.publish'}

def test_makefile_uses_what_every_system_has(root):
    "BSD's grep has no -P, its sed -i and date differ"
    assert not re.search(r'grep -\w*P|sed -i|readlink -f|date -d|find [^\n]*-printf|\bnproc\b', (root/'Makefile').read_text('utf-8'))
