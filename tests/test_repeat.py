"What a finished stage has written repeats its training: values instead of blanks, each fact once"
import json, pytest, torch
from transformers import AutoModel
from fastformers.cli import main
from fastformers.inference.predictor import from_hf
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.ulmfit.record import Stage, fill_in
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

pytestmark = pytest.mark.exact
df = tiny_df()
long = df.assign(text=[' '.join([o]*20) for o in df.text])
more = [f'{o} {word}' for o in df.text for word in ('again','and','film','well','good')]
chosen = 'epochs lr schedule head_init head max_len windows sampled pairing task refit'.split() # where they are blank

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    "A checkpoint without an LM head"
    path = tmp_path_factory.mktemp('arch')
    torch.manual_seed(0)
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(path); tiny_tok('bert').save_pretrained(path)
    return path

def alike(a, b): return all(torch.equal(p, q) for p,q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))

def written(stage, path):
    "The settings of the stage in a file, read again"
    recipe,why = fill_in(Recipe(), [stage])
    path.write_text(recipe.to_ini(why))
    return read_recipe(path)

@pytest.mark.parametrize('rows,how', [(df, {}), (long, {}), (tiny_pairs(), dict(text_col=['text_a','text_b']))], ids=['few rows','windows','pairs'])
def test_the_written_settings_train_the_same_classifier(rows, how, arch, tmp_path):
    first = fine_tune_classifier(rows, arch, tmp_path/'c', precision='fp32', epochs=1., bs=8, **how)
    c = written(first, tmp_path/'settings.ini').classifier
    assert not [k for k in chosen if getattr(c, k) is None]
    assert c.head=='linear' and c.sampled==(rows is long) and c.pool==('mean' if 'text_col' in how else 'concat')
    assert alike(first.learner.model, fine_tune_classifier(rows, arch, precision='fp32', **how, **vars(c)).learner.model)

def test_what_two_trainings_chose_stays_blank(arch, tmp_path, monkeypatch):
    "With unlabelled texts a stage trains twice, and each training has steps of its own"
    monkeypatch.setattr('fastformers.learner.choose.choose_epochs', lambda dl, is_lm, windows_of, asked, n_classes: (asked or 1., 'one'))
    c = written(fine_tune_classifier(df, arch, bs=8, unlabelled=more, precision='fp32'), tmp_path/'settings.ini').classifier
    assert {k for k in chosen if getattr(c, k) is None}=={'epochs','head_init'}

def test_the_written_settings_train_the_same_language_model(arch, tmp_path):
    first = fine_tune_lm(df, arch, epochs=1., bs=8, seq_len=32, precision='fp32')
    c = written(first, tmp_path/'settings.ini').lm
    assert (c.objective,c.mask_rate,c.keep_vectors,c.lr)==('mlm',.2,1.,1e-3) and {k for k,v in vars(c).items() if v is None}=={'minutes'}
    assert alike(first.learner.model, fine_tune_lm(df, arch, precision='fp32', **vars(c)).learner.model)

def test_a_command_leaves_settings_that_repeat_it(arch, tmp_path):
    df.to_csv(tmp_path/'rows.csv', index=False)
    def classify(out, *flags): assert main(['classify', str(tmp_path/'rows.csv'), '--output', str(tmp_path/out), '--precision', 'fp32', *map(str, flags)])==0
    classify('a', '--arch', arch, '--epochs', 1, '--bs', 8)
    classify('b', '--recipe', tmp_path/'a/settings.ini')
    assert alike(*(from_hf(tmp_path/o, device='cpu').model for o in 'ab'))
    assert 'lr = 0.001 # ' in (tmp_path/'a/settings.ini').read_text() and read_recipe(tmp_path/'b/settings.ini').classifier.refit is True

def test_a_fact_of_a_stage_stands_in_one_file(arch, tmp_path):
    stage = fine_tune_classifier(df, arch, tmp_path/'c', epochs=1., bs=8, precision='fp32')
    facts,record = (json.loads((tmp_path/'c'/f'{o}.json').read_text()) for o in ('stage','record'))
    assert facts.keys()&record.keys()=={'parent','data'}                    # the directory before and its name, a hash and sizes
    again = Stage.load(tmp_path/'c/record.json')
    assert (again.lr,again.metrics,again.seed,again.plan.to_dict())==(stage.lr,stage.metrics,stage.seed,stage.plan.to_dict()) and again.table().equals(stage.table())
    assert facts['recipe']['lr']==1e-3 and facts['recipe']['head']=='linear'
