"The notebooks are the source of the modules, and the order of the rooms is the order of imports"
import ast, importlib.util, json, os, re, shutil, subprocess, symtable, sys, sysconfig
from functools import cache
from pathlib import Path
import mutations, parts, pytest

rooms = 'files args hub stats document text models objectives tasks inference data callback learner interpret ulmfit compare label commands cli all papers lens'.split()
light = 'files args hub stats document text models tasks inference testing'.split()        # rooms that never import fastai

def notebooks(root): return sorted(o for o in (root/'nbs').rglob('*.ipynb') if not any(p[0] in '._' for p in o.relative_to(root/'nbs').parts))
def read(nb): return json.loads(nb.read_text('utf-8'))
def module(nb):
    "The module that notebook `nb` exports, if any"
    found = re.search(r'^#\|\s*default_exp\s+(\S+)', '\n'.join(''.join(c['source']) for c in read(nb)['cells'] if c['cell_type']=='code'), re.M)
    return found and found[1]
@pytest.fixture(scope='module')
def place(root):
    "{module: (number of its room, name of its notebook)}, which sorts in the order of imports; `testing` stands alone"
    res = {m:(m.split('.')[0].split('_')[0], nb.name) for nb in notebooks(root) if (m := module(nb))}
    assert not (lost := {r for r,_ in res.values()}-{*rooms,'testing'}), f'folders that are no room: {lost}'
    return {m:(rooms.index(r), nb) for m,(r,nb) in res.items() if r!='testing'}

@pytest.fixture(scope='module')
def fresh(root, tmp_path_factory):
    "A copy of the project whose modules are exported anew, its notebooks cleaned"
    new = tmp_path_factory.mktemp('fresh')
    skip = shutil.ignore_patterns('__pycache__', '.*', '_*.ipynb')
    shutil.copy(root/'pyproject.toml', new)
    for o in ('nbs','fastformers'): shutil.copytree(root/o, new/o, ignore=skip)
    for o in (new/'fastformers').rglob('*.py'):
        if o.name not in ('__init__.py','__main__.py'): o.unlink()
    env = {k:v for k,v in os.environ.items() if k!='IN_TEST'}       # with it, nbdev-export does nothing
    for o in ('nbdev-export','nbdev-clean'): subprocess.run([Path(sysconfig.get_path('scripts'))/o], cwd=new, env=env, check=True, capture_output=True, text=True)
    return new

def files(d, folder, ext): return {str(o.relative_to(d)):o.read_text('utf-8') for o in (d/folder).rglob(f'*{ext}') if not any(p.startswith('.') for p in o.relative_to(d).parts)}
def differing(a, b): return sorted(o for o in a.keys()|b.keys() if a.get(o)!=b.get(o))

def test_modules_equal_export(root, fresh):
    diff = differing(files(root, 'fastformers', '.py'), files(fresh, 'fastformers', '.py'))
    assert not diff, f'run nbdev-export; these differ from their notebooks, or have none: {diff}'

def test_notebooks_are_clean(root, fresh):
    diff = differing(files(root, 'nbs', '.ipynb'), files(fresh, 'nbs', '.ipynb'))
    assert not diff, f'run nbdev-clean; not clean: {diff}'

def test_pages_that_read_the_log_turn_it_on(root):
    "Plain `nbdev-test` runs several pages in a process, of which an earlier one may have turned warnings off"
    for nb in notebooks(root):
        code = '\n'.join(''.join(c['source']) for c in read(nb)['cells'] if c['cell_type']=='code' and '#| export' not in ''.join(c['source']))
        if re.search(r'def emit\(|assertLogs', code): assert 'logging.disable(logging.NOTSET)' in code, nb.name

def test_export_keeps_pyproject(root, fresh): assert (root/'pyproject.toml').read_text()==(fresh/'pyproject.toml').read_text()

@pytest.fixture(scope='module')
def readme(root):
    "The script that renders README.md, as a module"
    spec = importlib.util.spec_from_file_location('readme', root/'tools/readme.py')
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod

def test_readme_is_rendered(root, readme):
    text,pics = readme.render(root/'nbs/index.ipynb')
    assert (root/'README.md').read_text('utf-8')==text, 'run make readme'
    assert {f'nbs/images/{o.name}':o.read_bytes() for o in (root/'nbs/images').glob('readme_*.png')}==pics, 'run make readme'

def test_rendering_honours_directives(readme, tmp_path):
    def code(src, *outs): return dict(cell_type='code', source=src.splitlines(True), outputs=[*outs])
    def data(**kw): return dict(output_type='execute_result', data={k.replace('_', '/'):v for k,v in kw.items()})
    printed = dict(output_type='stream', name='stdout', text=['\x1b[31mred\x1b[0m\n'])
    cells = [dict(cell_type='markdown', source=['See [it](00_core.ipynb), [that](https://x.org) and [this](../LICENSE)']),
        code('#| hide\nsecret = 1', data(text_plain='hidden')), code('#| echo: false\nunseen', data(text_plain='shown')),
        code('#| eval: false\nuser_runs_this()'), code('1+1', printed, data(text_plain='2', text_html='<style>a</style><table>t</table>')),
        code('plot()', data(image_png='aGk=', text_plain='<Figure>'))]
    (tmp_path/'index.ipynb').write_text(json.dumps(dict(cells=cells)))
    text,pics = readme.render(tmp_path/'index.ipynb')
    body = text.removeprefix(readme.note)
    assert body==('See [it](nbs/00_core.ipynb), [that](https://x.org) and [this](LICENSE)\n\n```\nshown\n```\n\n```python\nuser_runs_this()\n```\n\n'
        '```python\n1+1\n```\n\n```\nred\n```\n\n<table>t</table>\n\n```python\nplot()\n```\n\n![](nbs/images/readme_1.png)\n')
    assert pics=={'nbs/images/readme_1.png':b'hi'}

def imports(root, mod):
    "(module, name) for each import from the package in `mod`, anywhere in it"
    here = ('fastformers.'+mod).split('.')
    for o in ast.walk(ast.parse((root/f'{"/".join(here)}.py').read_text('utf-8'))):
        if isinstance(o, ast.Import): yield from ((n.name.partition('.')[2], '') for n in o.names if n.name.split('.')[0]=='fastformers')
        elif isinstance(o, ast.ImportFrom):
            path = here[:-o.level] if o.level else []
            base = [*path, *(o.module.split('.') if o.module else [])]
            if base[:1]==['fastformers']: yield from (('.'.join(base[1:]), n.name) for n in o.names)

def used(root, mod, known):
    "The modules that `mod` imports: `from .text import core` imports a module, `from .text.core import x` too"
    for m,name in imports(root, mod):
        full = f'{m}.{name}'.strip('.')
        if full in known or m in known: yield full if full in known else m

def test_imports_go_downward(root, place):
    up = [f"{m} imports {o}" for m in place for o in sorted({*used(root, m, place)}) if place[o]>=place[m]]
    assert not up, f'a module imports earlier rooms, and pages with lower numbers in its own: {up}'

def test_imports_exist(root, place):
    lost = [f'{m} imports {o}' for m in place for o,_ in imports(root, m) if o and o not in place and not (root/f'fastformers/{o.replace(".","/")}/__init__.py').exists()]
    assert not lost, f'no notebook exports what is imported: {lost}'

def test_private_names_stay_at_home(root, place):
    bad = [f'{m} imports {o}.{n}' for m in place for o,n in imports(root, m) if n.startswith('_') and not n.startswith('__')]
    assert not bad, f'a name that begins with _ is used in its own module only: {bad}'

def test_names_are_imported_one_by_one(root, place):
    assert not (bad := [f'{m} imports {o}.*' for m in place for o,n in imports(root, m) if n=='*']), bad

def test_testing_stands_alone(root, place):
    top = ast.parse((root/'fastformers/testing.py').read_text('utf-8')).body
    ours = [ast.unparse(o) for o in top if isinstance(o, (ast.Import,ast.ImportFrom)) and re.search(r'from \.|\bfastformers\b', ast.unparse(o))]
    assert not ours, f'testing imports our modules in its checks only: {ours}'
    users = [m for m in place if any(o=='testing' for o,_ in imports(root, m))]
    assert not users, f'testing is for tests and examples; imported by {users}'

def test_light_rooms_load_no_fastai(place, without_fastai):
    names = [o for o in [*sorted(place, key=place.get), 'testing'] if o.split('.')[0] in light]
    code = f"""import importlib, sys
for o in {names}:
    importlib.import_module('fastformers.'+o)
    if 'fastai' in sys.modules: sys.exit(f'fastformers.{{o}} imports fastai')"""
    without_fastai(code)

def test_rooms_say_what_they_are(root):
    for o in (root/'fastformers').glob('*/__init__.py'):
        code = ast.parse(o.read_text('utf-8'))
        assert len(code.body)==1 and ast.get_docstring(code, clean=False).count('\n')==0, f'{o}: one line, its docstring'

def test_the_package_lists_its_modules(root, place):
    doc = ast.get_docstring(ast.parse((root/'fastformers/__init__.py').read_text('utf-8')))
    lost = {m for m in place if f'`fastformers.{m}`' not in doc}
    assert not lost, f'nbdev lists a module whose introduction has two lines or more: {lost}'

def test_outputs_show_no_path_and_no_warning(root):
    bad = [(nb.name, m[0]) for nb in notebooks(root) for c in read(nb)['cells'] for o in c.get('outputs', [])
           if (m := re.search(r'(?<![\w.:/])/(root|work|home|tmp|Users|var|opt|usr)/\w*|\w+Warning:', json.dumps({k:v for k,v in o.items() if k!='metadata'}).replace('\\n', ' ')))]
    assert not bad, f'saved outputs show paths of this machine, or warnings: {bad}'

def test_outputs_hold_no_error(root):
    bad = [nb.name for nb in notebooks(root) for c in read(nb)['cells'] for o in c.get('outputs', []) if o['output_type']=='error']
    assert not bad, f'saved with an error: {bad}'

# Where the figures in prose are from

figure = re.compile(r'(?<![\w.,])(?:\d*\.\d+(?![\w.]*\d)|\d[\d,]*(?= ?%| (?:points?|times|seconds?|minutes?|hours?|MB|GB)\b))')
paper = re.compile(r'\]\(https?://|[A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+)?,? \(?(?:19|20)\d\d')
aside = re.compile(r'```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)|[Ss]ections? [\d.]+(?: and [\d.]+)?|(?:table|Apache) [\d.]+|95 % intervals?', re.S)

def figures(text): return figure.findall(aside.sub('`', text))
def numbers(text):
    found = re.findall(r'(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?|(?<!\w)\.\d+', text)
    return {float(o.replace(',', '')) for o in found}
def shown(cell):
    outs = [v for o in cell.get('outputs', []) for v in (o.get('text', ''), *(v for k,v in o.get('data', {}).items() if k.startswith('text')))]
    return '\n'.join([''.join(cell['source']), *map(''.join, outs)])
@cache
def stored(path):
    "The numbers that the file at `path` holds"
    text = path.read_text('utf-8')
    if path.suffix=='.ipynb': return numbers('\n'.join(map(shown, json.loads(text)['cells'])))
    if path.suffix in ('.json','.jsonl'): text = re.sub(r'"[^"]*"', '', text)       # the values alone
    return numbers(text)
def holds(known, fig):
    "Whether some number rounds to `fig`, as it is, as a percentage or as a share"
    half,fig = .500001*10**-len(fig.partition('.')[2]),float(fig.replace(',', ''))
    return any(abs(k*o-fig)<=half for o in known for k in (1,100,.01))

def linked(page, text): return [(page.parent/o).resolve() for o in re.findall(r'\]\(([^)\s#]+)', text) if ':' not in o]

def unsourced(page):
    "(figure, sentence) of figures that neither code nor outputs of `page` have, nor a paper that the sentence cites, nor a file that the paragraph links"
    cells = read(page)['cells']
    own = numbers('\n'.join(shown(c) for c in cells if c['cell_type']=='code'))
    for text in (''.join(c['source']) for c in cells if c['cell_type']=='markdown'):
        for paragraph in re.split(r'\n\s*\n(?!\s*\|)', text):                # a table belongs to the paragraph above it
            known = own.union(*(stored(o) for o in linked(page, paragraph) if o.suffix in ('.ipynb','.md','.json','.jsonl')))
            for o in re.split(r'(?<=[.?!]) (?=[A-Z`*])|\n(?=\||- )', paragraph):
                if not paper.search(o): yield from ((x, o) for x in figures(o) if not holds(known, x))

def test_figures_say_where_they_are_from(root):
    pages = [o for o in notebooks(root) if o.stem not in ('log','index')]        # README, which is made of index, has tests of its own
    bad = [f'{page.relative_to(root)}: {x} in "{o[:90]}"' for page in pages for x,o in unsourced(page)]
    assert not bad, '\n'.join(['link the file that holds the figure, show it by code, cite its paper, put a setting in backticks, or leave it out:', *bad])

several = re.compile(r'\d*\.\d+(?:, \d*\.\d+)+')
change = re.compile(r'(?:±|(?<![\w.])[+-]) ?(\d*\.?\d+)|(\d*\.?\d+) points?\b')

def log_sources(log, text):
    "The files below `benchmarks` that `text` links, and the results of each script that it names in backticks"
    home = log.parents[1]/'benchmarks'
    files = {o for o in linked(log, text) if o.is_relative_to(home)}
    for name in re.findall(r'`(\w+)\.py\b', text): files |= {o for o in (home/'results').rglob('*.json*') if re.match(rf'{name}[_./]', str(o.relative_to(home/'results')))}
    return files

@cache
def arms(path):
    "For each arm of the rows at `path` the numbers of its draws, in their order; some draws have rows of several days"
    by,names = {},'part what set n labels share arch encoder arm way pool lr read budget'.split()
    for row in map(json.loads, path.read_text('utf-8').splitlines()):
        draws = by.setdefault((row.get('test') is True, *(str(row.get(o)) for o in names)), {})
        draws.setdefault(row.get('draw') or row.get('seed') or 0, set()).update(numbers(re.sub(r'"[^"]*"', '', json.dumps(row))))
    return [[draws[o] for o in sorted(draws)] for draws in by.values()]
def in_order(draws, figs): return any(all(map(holds, draws[i:], figs)) for i in range(len(draws)-len(figs)+1))

def unsourced_in_log(log):
    """(figure, first line) of figures of an entry, or of a table's row with sources of its own, that its sources lack

    Among a thousand rows each figure is found. So `.871, .877` has to be draws of one arm, and differences and ± are in files that hold no rows."""
    for entry in re.split(r'^(?=##)', '\n\n'.join(''.join(c['source']) for c in read(log)['cells']), flags=re.M):
        alone = [o for o in entry.splitlines() if o.startswith('|') and log_sources(log, o)]
        for text in (*alone, '\n'.join(o for o in entry.splitlines() if o not in alone)):
            rows,files = [],[]
            for o in log_sources(log, text): (rows if o.suffix=='.jsonl' else files).append(o)
            computed = set().union(*map(stored, files))
            known,plain = computed.union(*map(stored, rows)),aside.sub('`', text)
            def drawn(figs): return all(holds(computed, o) for o in figs) or any(in_order(arm, figs) for o in rows for arm in arms(o))
            yield from ((x, text[:90]) for x in figures(text) if not holds(known, x))
            yield from ((x, text[:90]) for x in (a or b for a,b in change.findall(plain)) if not holds(computed, x))
            yield from ((x, text[:90]) for x in several.findall(plain) if not drawn(x.split(', ')))

def test_each_figure_of_the_log_has_a_row(root):
    bad = [f'{x} in "{text}"' for x,text in unsourced_in_log(root/'nbs/log.ipynb')]
    assert not bad, '\n'.join(['name the script whose results hold the figure, link the file, put a setting in backticks, or leave the figure out:', *bad])

def test_a_figure_without_a_row_is_found_in_the_log(tmp_path):
    (tmp_path/'nbs').mkdir()
    (home := tmp_path/'benchmarks/results/rates').mkdir(parents=True)
    rows = [dict(arm='a', draw=1, accuracy=.8672, gain=1.5), dict(arm='a', draw=2, accuracy=.871), dict(arm='b', draw=2, accuracy=.9)]
    (home/'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    (home.parent/'rates_more.json').write_text('{"error": 12.5}')
    (home.parents[1]/'README.md').write_text('MiniLM: 77.7 % right, +1.5 ± 0.4')
    (tmp_path/'nbs/page.ipynb').write_text(json.dumps(dict(cells=[dict(cell_type='markdown', source=['It has 91.1 %.'])])))
    def found(text):
        (tmp_path/'nbs/log.ipynb').write_text(json.dumps(dict(cells=[dict(cell_type='markdown', source=[text])])))
        return [x for x,_ in unsourced_in_log(tmp_path/'nbs/log.ipynb')]
    assert found('### Which? (trial)\n\nAt `2e-5` it has 86.7 %.')==['86.7'] and found('### Which? (`rates.py`)\n\n86.7 %, an error of 12.5, and .88')==['.88']
    assert found('### One (`rates.py`)\n\n.867\n\n### Two\n\n.867')==['.867']                # another entry's script
    assert found('### Two\n\nSee [a page](page.ipynb): 91.1 %, in Clark et al. (2020) too')==['91.1']
    tables = '### Three\n\n| q | a |\n|---|---|\n| this | {} |\n| that (`rates.py`) | .867 |'
    assert found(tables.format('.867'))==['.867'] and found(tables.format('.867, `rates.py`'))==[]
    assert found('### Four (`rates.py`)\n\n.867, .871; .871, .867; .871, .900')==['.871, .867','.871, .900']      # another order, another arm
    assert found('### Four (`rates.py`)\n\n+1.5, ± 1.5; 1.5 points')==['1.5']*3                  # rows hold no mean difference
    assert found('### Four\n\n+1.5 ± 0.4, 1.5 points ([tables](../benchmarks/README.md))')==[]

def test_figures_of_the_changelog_are_stored(root):
    known = set().union(*map(stored, [root/'benchmarks/README.md', root/'nbs/log.ipynb', *(root/'benchmarks/results').glob('*.json')]))
    bad = [o for o in figures((root/'CHANGELOG.md').read_text('utf-8')) if not holds(known, o)]
    assert not bad, f"neither the benchmarks' page nor the log nor a result has these figures: {bad}"

def test_a_figure_without_a_source_is_found(tmp_path):
    (tmp_path/'rows.jsonl').write_text('{"accuracy": 0.8672, "n": 500}\n')
    def found(text, *code):
        cells = [dict(cell_type='markdown', source=[text]), *(dict(cell_type='code', source=[o]) for o in code)]
        (tmp_path/'page.ipynb').write_text(json.dumps(dict(cells=cells)))
        return [x for x,_ in unsourced(tmp_path/'page.ipynb')]
    assert found('It is right in 86.7 % after 3 minutes, the other is 1.5 points behind.')==['86.7','3','1.5']
    linked = 'It has .87 ([rows](rows.jsonl)), 87 % or 0.867'
    assert found(linked+'.')==[] and found(linked+', and .88')==['.88'] and found('It has .87.\n\n[rows](rows.jsonl)')==['.87']
    assert found('Set `p=.25`, as in section 3.2 of Clark et al. (2020). It is at .91.')==['.91'] and found('It is at .91.', '.91')==[]
    assert found('Clark et al. (2020) have 82.2.\n\n| a | b |\n|---|---|\n| x | .91 |')==['.91']

def test_no_name_of_fastai_is_shadowed():
    import fastai.text.all as f, fastformers.all as o
    assert not (bad := [n for n in o.__all__ if hasattr(f, n) and getattr(f, n) is not getattr(o, n)]), f'these are other names of fastai.text.all: {bad}'

# What nbdev's own commands do

def names(src):
    "The names that a cell defines, and those that it takes from others"
    top = symtable.symtable(src, 'cell', 'exec')
    made = {o.get_name() for o in top.get_symbols() if o.is_assigned() or o.is_imported()}
    def used(t): return {o.get_name() for o in t.get_symbols() if o.is_referenced() and (t is top or o.is_global())}.union(*map(used, t.get_children()))
    return made, used(top)-made

def unready(cells):
    "The cells that nbdev executes when it processes a page, since they hold an import, though those that define what they need are left out"
    ran,left,need = set(),set(),{}
    for c in cells:
        src = ''.join(c['source'])
        if c['cell_type']!='code' or re.search(r'^[%!]|^#\|\s*eval:\s*false', src, re.M): continue
        made,used = names(src)
        exported = re.search(r'^#\|\s*export', src, re.M)
        if exported or any(isinstance(o, (ast.Import,ast.ImportFrom)) for o in ast.walk(ast.parse(src))):
            ran |= made
            if not exported: need[src] = used
        else: left |= made
    return {k.splitlines()[0]:o for k,v in need.items() if (o := v&left-ran)}

def test_a_cell_with_an_import_needs_no_cell_without_one(root):
    bad = {nb.name:o for nb in notebooks(root) if (o := unready(read(nb)['cells']))}
    assert not bad, f'nbdev-proc-nbs runs cells with imports alone; put these imports in cells of their own: {bad}'

def test_such_a_cell_is_found():
    def cells(*srcs): return [dict(cell_type='code', source=o) for o in srcs]
    assert unready(cells('x = 1', 'import json\ny = [x for _ in z]'))=={'import json':{'x'}}
    assert not unready(cells('x = 1', 'import json', 'y = x', 'import os\nz = os.sep'))
    assert unready(cells('x = 1', 'def f():\n    import json\n    return x'))=={'def f():':{'x'}}

def test_nbdev_documents_each_config(root):
    "It evaluates the annotations of `PretrainedConfig` in the module of the subclass"
    from nbdev.showdoc import show_doc
    for path in (root/'fastformers').rglob('*.py'):
        names = re.findall(r'^class (\w+Config)\(', path.read_text('utf-8'), re.M)
        module = names and importlib.import_module('.'.join(path.relative_to(root).with_suffix('').parts))
        for o in names: show_doc(getattr(module, o))

@pytest.mark.slow
def test_nbdev_processes_all_pages(root, tmp_path):
    "With a Quarto that does nothing; what it leaves beside the notebooks is ignored by git"
    shutil.copytree(root, new := tmp_path/'new', ignore=shutil.ignore_patterns('.*', '__pycache__', 'runs', 'models', '_docs', '_proc'))
    shutil.copy(root/'.gitignore', new)
    (quarto := tmp_path/'quarto').write_text('#!/bin/sh\n')
    quarto.chmod(0o755)
    before = {*new.rglob('*')}
    env = {k:v for k,v in os.environ.items() if k!='IN_TEST'} | dict(PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHONPATH=str(new))
    r = subprocess.run([Path(sysconfig.get_path('scripts'))/'nbdev-proc-nbs', '--n-workers', '2'], cwd=new, env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stdout+r.stderr
    ignored = (new/'.gitignore').read_text().split()
    left = {o.relative_to(new) for o in new.rglob('*')}-{o.relative_to(new) for o in before}
    assert not (odd := [o for o in map(str, left) if '__pycache__' not in o and not any(o==i or o.startswith(i.strip('/')+'/') or o+'/'==i for i in ignored)]), odd

def test_parts_together_are_all_pages_and_tests(root):
    "Each name is a page or a test, in one part of ten, and the parts take equally long; what is new is in each part"
    names = json.loads(parts.path.read_text())
    for o in names:
        file,_,test = o.partition('::')
        assert (root/file).exists() and (not test or f'def {test}(' in (root/file).read_text('utf-8')), f'{o} has gone: `make test-all WHICH=--seconds`'
    for kind in ('nbs/','tests/'):
        mine = {k:v for k,v in names.items() if k.startswith(kind)}
        others = [parts.left_out(i, kind) for i in range(parts.n_parts)]
        assert mine and all(sum(k not in o for o in others)==1 for k in mine)
        assert parts.left_out(parts.n_parts+2, kind)==others[2] and parts.left_out(None, kind)==set()
        took = [sum(v for k,v in mine.items() if k not in o) for o in others]
        assert max(took)-min(took)<=max(mine.values())

def test_each_mutation_changes_one_line_that_is_there():
    gone = [name for name,module,old,*_ in mutations.mutations if mutations.source(module).read_text('utf-8').count(old)!=1]
    assert not gone, f'mutations of lines that are not there any more: {gone}'
