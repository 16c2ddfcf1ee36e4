"What is opened is data: the source holds no pickle, no evaluated text, no shell, and no code of a checkpoint"
import ast, pytest

itself = "[sys.executable, '-W', 'ignore', '-m', 'fastformers'" # a command of the package, in a process of its own
banned = dict(eval='evaluates text', exec='runs text', compile='compiles text', __import__='imports by name')
modules = {'pickle','marshal','shelve','dill','cloudpickle','joblib'}
calls = {'torch.load','torch.save','pd.read_pickle','os.system','os.popen','subprocess.run','subprocess.Popen','subprocess.check_output','shutil.unpack_archive'}

def found(code):
    "What the source `code` does that it must not"
    for o in ast.walk(ast.parse(code)):
        names = [n.name for n in o.names] if isinstance(o, ast.Import) else [o.module or ''] if isinstance(o, ast.ImportFrom) and not o.level else []
        yield from (f'imports {n}' for n in names if n.split('.')[0] in modules)
        if not isinstance(o, ast.Call): continue
        name = ast.unparse(o.func)
        if isinstance(o.func, ast.Name) and name in banned: yield banned[name]
        ours = name=='subprocess.Popen' and o.args and ast.unparse(o.args[0]).startswith(itself)
        if name in calls and not ours or name.endswith(('.extractall','.to_pickle')): yield f'calls {name}'
        for k in o.keywords:
            if k.arg in ('shell','allow_pickle','trust_remote_code') and not (isinstance(k.value, ast.Constant) and k.value.value is False): yield f'{name}({k.arg}=...)'

@pytest.mark.parametrize('code', ['np.load(f, allow_pickle=True)', 'eval("1")', 'import pickle', 'from pickle import loads', 'torch.load(f)', 'run("ls", shell=True)', 'from_pretrained(a, trust_remote_code=x)', 'os.system("ls")', 'z.extractall()', 'subprocess.Popen([sys.executable, f])', 'subprocess.Popen(f)'])
def test_the_reader_finds_it(code): assert [*found(code)]

def test_the_source_is_free_of_it(root):
    bad = [(o.name, what) for o in (root/'fastformers').rglob('*.py') for what in found(o.read_text('utf-8'))]
    assert not bad, bad

def test_models_are_loaded_without_their_code(root):
    "`load_kwargs` turns the code of a checkpoint off, in each call but those of our own class and of a method that passes them on"
    assert 'load_kwargs = dict(trust_remote_code=False)' in (root/'fastformers/hub.py').read_text('utf-8')
    calls = [(o.name, ast.unparse(c)) for o in (root/'fastformers').rglob('*.py') for c in ast.walk(ast.parse(o.read_text('utf-8'))) if isinstance(c, ast.Call) and ast.unparse(c.func).endswith('.from_pretrained')]
    assert len(calls)>4 and {f for f,c in calls if '**load_kwargs' not in c and not c.startswith('nn.')}=={'elmo.py'}
