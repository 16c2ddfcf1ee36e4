"What README shows runs as it stands: the example on a small file and network, the commands with their flags"
import re, shlex
import matplotlib.pyplot as plt, pytest, torch
from transformers import AutoModelForMaskedLM
from fastformers.cli import parse_args
from fastformers.testing import tiny_arch, tiny_tok

@pytest.fixture(scope='module')
def blocks(root): return re.findall(r'^```(\w+)\n(.*?)^```', (root/'README.md').read_text('utf-8'), re.M|re.S)

@pytest.mark.filterwarnings('ignore')
def test_the_example_runs(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained('tiny'); tiny_tok('bert').save_pretrained('tiny')
    code = '\n'.join(src for kind,src in blocks if kind=='python').replace("'minilm'", "'tiny'")
    names = {}
    exec(compile(code, 'README.md', 'exec'), names)
    plt.close('all')
    assert names['predict']('A text.')[0]['label'] in {*names['df'].label}

def test_it_is_short_and_says_at_once_what_for(root):
    text = (root/'README.md').read_text('utf-8')
    assert len(text.splitlines())<=100 and len(text.split())<=950
    assert re.search(r'accuracy 0\.\d\d', text.partition('\n> ')[2][:260]), 'a figure with its price stands in the first sentence'

def test_the_tutorials_are_linked(root):
    text = (root/'README.md').read_text('utf-8')
    assert not [o.name for o in (root/'nbs/tutorials').glob('[!_]*.ipynb') if o.name not in text]

def test_the_commands_are_understood(blocks):
    lines = [o for kind,src in blocks if kind=='sh' for o in src.splitlines() if o.startswith('fastformers ')]
    assert len(lines)>=3
    for o in lines: assert callable(parse_args(shlex.split(o, comments=True)[1:]).command)
