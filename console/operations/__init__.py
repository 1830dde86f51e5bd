"""Operations that the commands and the web console share. They import no click, no Flask and no rich."""
