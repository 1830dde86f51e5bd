"""Operations that commands and pages share. They import no click, no Flask and no rich."""
