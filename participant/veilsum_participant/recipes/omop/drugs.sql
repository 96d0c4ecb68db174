-- OMOP CDM 5.4: one row a person who was observed, and which of these drugs were ever recorded, with all descendants:
--   metformin: 1503297, metformin
--   insulin: 21600713, ATC A10A, insulins and analogues
--   statin: 21601855, ATC C10AA, HMG CoA reductase inhibitors
WITH persons AS (
    -- A person once, however often the table has them.
    SELECT person_id, max(year_of_birth) AS year_of_birth, max(gender_concept_id) AS gender_concept_id
    FROM person
    GROUP BY person_id
),
drugs AS (
    SELECT
        drug_exposure.person_id,
        max(CASE WHEN 1503297 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS metformin,
        max(CASE WHEN 21600713 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS insulin,
        max(CASE WHEN 21601855 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS statin
    FROM drug_exposure
    LEFT JOIN concept_ancestor
        ON concept_ancestor.descendant_concept_id = drug_exposure.drug_concept_id
        AND concept_ancestor.ancestor_concept_id IN (1503297, 21600713, 21601855)
    GROUP BY drug_exposure.person_id
)
SELECT
    persons.person_id,
    CASE WHEN drugs.metformin = 1 THEN 'yes' ELSE 'no' END AS metformin,
    CASE WHEN drugs.insulin = 1 THEN 'yes' ELSE 'no' END AS insulin,
    CASE WHEN drugs.statin = 1 THEN 'yes' ELSE 'no' END AS statin
FROM persons
JOIN (SELECT DISTINCT person_id FROM observation_period) AS observed ON observed.person_id = persons.person_id
LEFT JOIN drugs ON drugs.person_id = persons.person_id
