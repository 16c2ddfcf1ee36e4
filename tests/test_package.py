"The package builds without a network, and holds the shipped models, data and the command"
import shutil, subprocess, sys, tarfile, zipfile
import pytest, yaml
import fastformers

skip = shutil.ignore_patterns('.*', '__pycache__', 'benchmarks', 'nbs', 'tests', 'runs', '_docs', 'build', '*.egg-info')

@pytest.fixture(scope='module')
def built(root, tmp_path_factory):
    "The wheel and the source archive of a copy of the project"
    new,out = tmp_path_factory.mktemp('copy')/'project',tmp_path_factory.mktemp('dist')
    shutil.copytree(root, new, ignore=skip)
    code = f"import setuptools.build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=new, capture_output=True, text=True)
    assert r.returncode==0, r.stdout+r.stderr
    return next(out.glob('*.whl')), next(out.glob('*.tar.gz'))

def test_the_wheel_holds_models_data_and_command(root, built):
    with zipfile.ZipFile(built[0]) as z:
        names = {*z.namelist()}
        entry = z.read(next(o for o in names if o.endswith('entry_points.txt'))).decode()
    for part in ('wiki-mini','clinc150'):
        assert {f'fastformers/{part}/{o.name}' for o in (root/'fastformers'/part).iterdir()} <= names, part
    assert {o.relative_to(root).as_posix() for s in ('py','css','js','md') for o in (root/'fastformers').rglob(f'*.{s}')} <= names
    assert 'fastformers = fastformers.cli:main' in entry
    assert not [o for o in names if o.split('/')[0] not in ('fastformers', built[0].name.split('-py3')[0]+'.dist-info')]

def test_the_wheel_works_elsewhere(built, tmp_path):
    "Unpacked into an empty folder, it trains the first arm of the demo: TF-IDF on the shipped texts"
    zipfile.ZipFile(built[0]).extractall(tmp_path)
    code = """import fastformers
from fastformers.hub import resolve_arch
from fastformers.text.corpora import intents
from fastformers.learner.evaluate import tfidf_scores
df = intents()
print(fastformers.__file__, tfidf_scores(intents(300), df[df.split=='test']).mean(), resolve_arch('wiki-mini'))"""
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=tmp_path, env={'PYTHONPATH':str(tmp_path), 'HF_HUB_OFFLINE':'1'}, capture_output=True, text=True)
    assert r.returncode==0, r.stderr
    file,accuracy,lm = r.stdout.split()[-3:]
    assert file.startswith(str(tmp_path)) and lm.startswith(str(tmp_path)) and float(accuracy)>.6

def test_the_source_archive_holds_what_builds_it(built):
    with tarfile.open(built[1]) as t: names = {o.partition('/')[2] for o in t.getnames()}
    assert {'pyproject.toml','README.md','LICENSE','fastformers/clinc150/intents.csv.gz','fastformers/wiki-mini/model.safetensors'} <= names

def test_the_citation_names_this_version(root):
    assert yaml.safe_load((root/'CITATION.cff').read_text('utf-8'))['version']==fastformers.__version__
