"Names of earlier versions: an error that says what to write instead, and what was written with them opens"
import pytest
from fastformers.testing import tiny_df
from fastformers.ulmfit.recipe import as_recipe, read_recipe
from fastformers.ulmfit.stage import fine_tune_classifier

settings = dict(halvings=(2, 'lower `lr`'), grad_windows=(2, '`SampleWindow`'))

@pytest.mark.parametrize('key', settings)
def test_a_setting_that_has_gone(key, tmp_path):
    value,says = settings[key]
    (tmp_path/'settings.ini').write_text(f'[classifier]\n{key} = {value}\n')
    for f in (lambda: fine_tune_classifier(tiny_df(), 'minilm', **{key:value}), lambda: as_recipe(dict(classifier={key:value})),
              lambda: read_recipe(tmp_path/'settings.ini')):
        with pytest.raises((TypeError,ValueError), match=f'{key}.*it has gone: .*{says}'): f()
