"Pages of papers through what any user does with them: hand a network on, stop a run and continue, compare with transformers"
import numpy as np, pytest, torch
from fastai.torch_core import set_seed
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from fastformers.callback.resume import Resume
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.awd_lstm import AWDLSTMConfig
from fastformers.papers.lstm_head import LSTMHead
from fastformers.models.load import load_body
from fastformers.objectives.core import objectives
from fastformers.papers.elmo import BiLMConfig, join_directions
from fastformers.papers.ewc import EWC, fisher_diagonal
from fastformers.papers.gpt import gpt_learner, gpt_tokens
from fastformers.papers.mixout import Mixout
from fastformers.papers.mt_dnn import AuxiliaryTasks
from fastformers.papers.uda import Consistency
from fastformers.testing import check_family
from fastformers.text.encode import HFTokenizer
from fastformers.text.tokenizer import extend_vocab
from fastformers.ulmfit.stage import fine_tune_classifier
from test_contracts_common import *

pytestmark = pytest.mark.exact
df,small = tiny_df(),dict(num_hidden_layers=1)
more = df[~df.is_valid].text[12:].tolist()

def lm(arch, tok, objective=None, path=None):
    "A language model after one epoch, and its directory"
    set_seed(0)
    learn = quiet(lm_learner(lm_dls(df, tok, objective, seq_len=32, bs=16, device='cpu'), arch, precision='fp32'))
    learn.fit(1, 1e-2)
    return learn, path and learn.save_encoder(path)

@pytest.fixture(scope='module')
def start(tmp_path_factory):
    "Directories that the classifiers of the papers begin from, and the importance of the weights of the first"
    tmp = tmp_path_factory.mktemp('papers')
    lstm = AWDLSTMConfig(vocab_size=len(tiny_tok('gpt2')), hidden_size=32, inner_size=32, num_hidden_layers=2)
    bert,at = lm(tiny_arch('bert', **small), tiny_tok('bert'), path=tmp/'bert')
    gpt = lm(tiny_arch('gpt2', **small), gpt_tokens(tiny_tok('gpt2')), path=tmp/'gpt')[1]
    ways = [lm(lstm, HFTokenizer(tiny_tok('gpt2'), backwards=o), path=tmp/f'lstm{o}')[1] for o in (False,True)]
    pairs = fine_tune_classifier(tiny_pairs(), at, tmp/'stilts', text_col=('text_a','text_b'), epochs=1).path
    return dict(bert=at, fisher=fisher_diagonal(bert, n=10), gpt=gpt, elmo=join_directions(*ways, tmp/'elmo'), stilts=pairs)

def tasks(siamese=False):
    "Dls of pairs and of numbers for `AuxiliaryTasks`"
    kw = dict(pairing='siamese') if siamese else {}
    return dict(pairs=classifier_dls(tiny_pairs(), tiny_tok('bert'), ('text_a','text_b'), bs=8, device='cpu', **kw),
                length=classifier_dls(df.assign(label=df.text.str.len()/10), tiny_tok('bert'), bs=8, device='cpu'))

def learner(page, start, cbs=()):
    "The classifier of a paper"
    own = {'ewc':lambda: EWC(start['fisher'], 100.), 'mixout':Mixout, 'mt_dnn':lambda: AuxiliaryTasks(tasks()),
           'uda':lambda: Consistency(more, confidence=.4), 'uda_words':lambda: Consistency(more, confidence=.4, fill=start['bert'])}
    arch = start[page if page in start else 'bert']
    cbs = [*([own[page]()] if page in own else []), *cbs]
    set_seed(0)
    dls = classifier_dls(df, arch, bs=8, device='cpu')
    kw = dict(hidden_states='mix', head=LSTMHead) if page=='elmo' else {}
    return quiet((gpt_learner if page=='gpt' else classifier_learner)(dls, arch, cbs=cbs, precision='fp32', **kw))

pages = ['ewc','mixout','mt_dnn','uda','uda_words','gpt','elmo','stilts']

@pytest.mark.parametrize('page', pages)
def test_a_classifier_is_handed_on(page, start, tmp_path):
    learn = learner(page, start); learn.fit(1, 1e-2)
    assert learn.model.loaded.loaded and not learn.model.loaded.new
    learn.to_hf(tmp_path/'m')
    theirs,mine = AutoModel.from_pretrained(tmp_path/'m').state_dict(),learn.model.body.state_dict()
    assert {k for k in theirs if 'pooler' not in k}=={*mine} and all(torch.equal(v, theirs[k]) for k,v in mine.items())
    want = learn.get_preds(dl=learn.dls.test_dl(texts[:9]))[0]
    assert gap(from_hf(tmp_path/'m', device='cpu').scores(texts[:9]), want)<1e-5
    assert not load_body(tmp_path/'m')[1].new

@pytest.mark.parametrize('page', pages)
def test_a_stopped_run_ends_as_the_whole_one(page, start, tmp_path):
    def run(at, *cbs):
        learn = learner(page, start, [Resume(tmp_path/at, every=2, minutes=None), *cbs])
        learn.fit_one_cycle(2, 1e-3)
        return learn
    whole = run('a')
    with pytest.raises(KeyboardInterrupt): run('b', Power(5))
    a,b = whole.model.state_dict(),run('b').model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)

@pytest.mark.parametrize('name', ['static_mlm','span_mlm','all_tokens_mlm','hybrid'])
def test_a_language_model_is_handed_on(name, tmp_path):
    tok = extend_vocab(tiny_tok('llama'), mask_token='<mask>') if name=='hybrid' else tiny_tok('bert')
    learn,at = lm(tiny_arch('llama' if name=='hybrid' else 'bert', **small), tok, objectives[name](tok), tmp_path/'lm')
    auto = AutoModelForCausalLM if name=='hybrid' else AutoModelForMaskedLM
    for cls,mine in ((AutoModel,learn.model.body), (auto,learn.model.hf)):
        theirs,mine = cls.from_pretrained(at).state_dict(),mine.state_dict()
        assert not [k for k in {*theirs}^{*mine} if k.split('.')[0] not in ('pooler','copy_gate')]
        assert all(torch.equal(v, theirs[k]) for k,v in mine.items() if k in theirs)
    assert not quiet(classifier_learner(classifier_dls(df, at, bs=8, device='cpu'), at)).model.loaded.new

@pytest.mark.parametrize('name', ['static_mlm','span_mlm'])
def test_the_loss_is_that_of_transformers(name):
    tok = tiny_tok('bert')
    obj = objectives[name](tok, p=.3)
    model = loud(obj.build(tiny_arch('bert', **small)))
    x,y = obj((batch(HFTokenizer(tok), texts[:6]),))
    with torch.no_grad(): theirs = model.hf(**model.model_inputs(x), labels=y.as_subclass(Tensor)).loss
    assert obj.loss_func(model(x), y).item()==pytest.approx(theirs.item(), rel=1e-5)

def test_what_any_family_promises(): check_family(BiLMConfig(vocab_size=500, hidden_size=64, inner_size=32, num_hidden_layers=2))

def test_heads_of_other_tasks_compare_and_are_saved(start, tmp_path):
    "Two texts that are read apart are compared, numbers are scaled, and a head is written and read"
    aux = AuxiliaryTasks(tasks(siamese=True))
    learn = quiet(classifier_learner(classifier_dls(df, start['bert'], bs=8, device='cpu'), start['bert'], cbs=aux, precision='fp32'))
    learn.fit(1, 1e-3)
    other = learn.model.others['pairs']
    assert other.head.pairing=='siamese' and learn.model.head.pairing is None
    std = np.std(df[~df.is_valid].text.str.len()/10)
    y = torch.tensor([0.,3.])
    assert float(aux.losses['length'](y+std, y))==pytest.approx(1, rel=.05)
    other.save(tmp_path/'other')
    again = TextClassifier(*load_body(tmp_path/'other'), type(other.head)(32, 2, pairing='siamese')).eval()
    again.load_head(tmp_path/'other')
    x = aux.tasks['pairs'].valid.one_batch()[0]
    with torch.no_grad(): assert gap(again(x), other.eval()(x))<1e-5
