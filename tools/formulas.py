"Draw the formulas of Markdown pages when the site is built: an extension of Python-Markdown, named in `tools/docs/mkdocs.yml`"
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from math_core import LatexToMathML

# As in a notebook: `$$...$$` stands on its own; `$...$` touches its marks, so that "$5 and $6" is none
formula = r'(?<![\\$])(?:\$\$(.+?)\$\$|\$(?![\s$])([^$]*?[^$\s\\])\$(?!\d))'

class Formula(InlineProcessor):
    "LaTeX as MathML, which browsers draw without a script. A formula that has an error fails the build"
    def handleMatch(self, m, data):
        own,inline = m.groups()
        return self.md.htmlStash.store(LatexToMathML().convert_with_local_state(own or inline, displaystyle=bool(own))), *m.span()

class Formulas(Extension):
    def extendMarkdown(self, md): md.inlinePatterns.register(Formula(formula, md), 'formula', 185)   # after code (190), before escapes (180)
