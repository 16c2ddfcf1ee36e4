"The notebooks are the source: what is exported follows from them, and modules build on lower ones only"
import ast, importlib.util, json, os, re, shutil, subprocess, sys, sysconfig
from pathlib import Path
import pytest

no_fastai = 'core corpora tokens models heads export testing'.split()
max_lines = 300

def notebooks(root): return sorted(o for o in (root/'nbs').rglob('*.ipynb') if not any(p[0] in '._' for p in o.relative_to(root/'nbs').parts))
def read(nb): return json.loads(nb.read_text('utf-8'))
def module(nb):
    "The module that notebook `nb` exports, if any"
    found = re.search(r'^#\|\s*default_exp\s+(\S+)', '\n'.join(''.join(c['source']) for c in read(nb)['cells'] if c['cell_type']=='code'), re.M)
    return found and found[1]
def order(root): return {m:i for i,m in enumerate(filter(None, map(module, notebooks(root))))}

@pytest.fixture(scope='module')
def fresh(root, tmp_path_factory):
    "A copy of the project whose modules are exported anew, its notebooks cleaned"
    new = tmp_path_factory.mktemp('fresh')
    skip = shutil.ignore_patterns('__pycache__', '.*', '_*.ipynb')
    shutil.copy(root/'pyproject.toml', new)
    for o in ('nbs','fastformers'): shutil.copytree(root/o, new/o, ignore=skip)
    for o in (new/'fastformers').rglob('*.py'):
        if o!=new/'fastformers/__init__.py': o.unlink()
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

def ours(src):
    "The modules of fastformers that the code `src` imports, anywhere in it"
    for o in ast.walk(ast.parse(src)):
        if isinstance(o, ast.Import): names = [n.name for n in o.names]
        elif isinstance(o, ast.ImportFrom):
            base = 'fastformers'+('.'+o.module if o.module else '') if o.level else o.module
            names = [base] if base!='fastformers' else [f'{base}.{n.name}' for n in o.names]
        else: continue
        yield from (n.split('.')[1] for n in names if n.startswith('fastformers.'))

def test_modules_import_downward_only(root):
    num = order(root)
    up = [f'{m} imports {o}' for m in num for o in ours((root/f'fastformers/{m}.py').read_text('utf-8')) if o in num and num[o]>=num[m]]
    assert not up, f'a module imports lower-numbered ones only: {up}'
    unknown = [f'{m} imports {o}' for m in num for o in ours((root/f'fastformers/{m}.py').read_text('utf-8')) if o not in num and not o.startswith('_')]
    assert not unknown, f'no notebook exports what is imported: {unknown}'

def test_testing_stands_alone(root):
    users = [m for m in order(root) if m!='all' and 'testing' in ours((root/f'fastformers/{m}.py').read_text('utf-8'))]
    assert not list(ours((root/'fastformers/testing.py').read_text('utf-8'))), 'testing imports nothing of ours'
    assert not users, f'testing is for tests and examples; imported by {users}'

def test_light_modules_load_no_fastai(root):
    names = [o for o in no_fastai if o in order(root)]
    assert 'core' in names and 'testing' in names
    code = f"""import importlib, sys
for o in {names}:
    importlib.import_module('fastformers.'+o)
    if 'fastai' in sys.modules: sys.exit(f'fastformers.{{o}} imports fastai')"""
    r = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert r.returncode==0, r.stderr

def test_modules_are_short(root):
    long = {o:n for o,s in files(root, 'fastformers', '.py').items() if o!='fastformers/_modidx.py' and (n := s.count('\n'))>max_lines}
    assert not long, f'over {max_lines} lines, split by idea: {long}'

def test_outputs_show_no_path_and_no_warning(root):
    bad = [(nb.name, m[0]) for nb in notebooks(root) for c in read(nb)['cells'] for o in c.get('outputs', [])
           if (m := re.search(r'(?<![\w.:/])/(root|work|home|tmp|Users|var|opt|usr)/\w*|\w+Warning:', json.dumps({k:v for k,v in o.items() if k!='metadata'}).replace('\\n', ' ')))]
    assert not bad, f'saved outputs show paths of this machine, or warnings: {bad}'

def test_outputs_hold_no_error(root):
    bad = [nb.name for nb in notebooks(root) for c in read(nb)['cells'] for o in c.get('outputs', []) if o['output_type']=='error']
    assert not bad, f'saved with an error: {bad}'

def test_no_name_of_fastai_is_shadowed(root):
    if 'all' not in order(root): pytest.skip('no aggregator yet')
    code = """import fastai.text.all as f, fastformers.all as o
print([n for n in o.__all__ if hasattr(f, n) and getattr(f, n) is not getattr(o, n)])"""
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=root, capture_output=True, text=True)
    assert r.returncode==0, r.stderr
    assert r.stdout.strip().splitlines()[-1]=='[]', f'names of fastai.text.all mean something else here: {r.stdout}'
