"What README shows runs as it stands: the example on a small file and network, the commands with their flags"
import re, shlex
import matplotlib.pyplot as plt, pytest, torch
from transformers import AutoModelForMaskedLM
from fastformers.cli import parse_args
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

@pytest.fixture(scope='module')
def blocks(root): return re.findall(r'^```(\w+)\n(.*?)^```', (root/'README.md').read_text('utf-8'), re.M|re.S)

@pytest.mark.filterwarnings('ignore')
def test_the_example_runs(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained('tiny'); tiny_tok('bert').save_pretrained('tiny')
    tiny_df()[['text','label']].to_csv('questions.csv', index=False)
    code = '\n'.join(src for kind,src in blocks if kind=='python').replace("'minilm'", "'tiny'")
    names = {}
    exec(compile(code, 'README.md', 'exec'), names)
    plt.close('all')
    assert names['from_hf']('models/questions')('A text.')[0]['label'] in {*tiny_df().label}

def test_the_commands_are_understood(blocks):
    lines = [o for kind,src in blocks if kind=='sh' for o in src.splitlines() if o.startswith('fastformers ')]
    assert len(lines)>=3
    for o in lines: assert callable(parse_args(shlex.split(o, comments=True)[1:]).command)
